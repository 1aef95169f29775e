"""python -m fsdp_plan ...: the program itself."""
from fsdp_plan.program import main

main()
