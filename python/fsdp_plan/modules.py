"""Names of modules and parameters as plans have them: without what wrappers put between."""
WRAPPERS = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")


def plain(name):
    """"layers.0._checkpoint_wrapped_module.mlp" is "layers.0.mlp"."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def by_name(model):
    """{plain name: module}, the outermost of those that share one. The model itself is ""."""
    found = {}
    for name, module in model.named_modules():
        found.setdefault(plain(name), module)
    return found


def innermost(module):
    """The user's module inside of its wrappers."""
    while inner := next((getattr(module, w) for w in WRAPPERS if w in module._modules), None):
        module = inner
    return module


def parameters_by_name(model):
    """{plain name: parameter}, tied ones under each of their names."""
    return {plain(name): p for name, p in model.named_parameters(remove_duplicate=False)}


def replace(model, name, module):
    """Puts `module` in the place of the module of that (plain) name."""
    parent, _, child = name.rpartition(".")
    setattr(innermost(by_name(model)[parent]), child, module)


def inside(name, outer):
    return not outer or name == outer or name.startswith(outer + ".")
