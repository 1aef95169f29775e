"""How recorders write a document of cases, and what they say about one that is committed."""
import json
import sys


def text_of(document, case=json.dumps):
    """The document as JSON with one entry per line and, under "cases", one case per line; `case` writes one."""
    def value(key, v):
        return "[\n" + ",\n".join("  " + case(c) for c in v) + "\n ]" if key == "cases" else json.dumps(v)
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {value(k, v)}" for k, v in document.items()) + "\n}\n"


def finish(path, text):
    """With --write keeps the text, otherwise prints which cases of the file changed. The exit status."""
    if "--write" in sys.argv:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return 0
    before = {c["config"]["name"]: c for c in json.loads(path.read_text())["cases"]}
    after = {c["config"]["name"]: c for c in json.loads(text)["cases"]}
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    print("changed: " + ", ".join(changed) if changed else f"all {len(before)} cases reproduced")
    return 1 if changed else 0
