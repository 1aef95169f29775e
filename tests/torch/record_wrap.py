"""Records what PyTorch's own auto-wrap machinery does to small module trees -> golden/wrap.json.

    python tests/torch/record_wrap.py          (needs torch; rewrites tests/torch/golden/wrap.json)

Each tree is written as a list of modules in named_modules() order and a list of parameters in named_parameters() order
with the modules that own them; each case is a policy and the modules that torch.distributed.fsdp.wrap wrapped, in the
order in which it wrapped them (post-order). The root itself is never wrapped by a policy.
"""
import functools
import json
import pathlib

import torch
from torch import nn
from torch.distributed.fsdp import wrap


class Wrapped(nn.Module):
    def __init__(self, module, **_):
        super().__init__()
        self.inner = module


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))


class Attention(nn.Module):
    def __init__(self, width, kv):
        super().__init__()
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv, bias=False)
        self.v_proj = nn.Linear(width, kv, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)


class MLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)


class Block(nn.Module):
    def __init__(self, width, kv, inner):
        super().__init__()
        self.self_attn = Attention(width, kv)
        self.mlp = MLP(width, inner)
        self.input_layernorm = Norm(width)
        self.post_attention_layernorm = Norm(width)


class Trunk(nn.Module):
    def __init__(self, vocab, width, kv, inner, layers):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, kv, inner) for _ in range(layers))
        self.norm = Norm(width)


class Llama(nn.Module):
    def __init__(self, vocab=40, width=8, kv=4, inner=20, layers=3, tied=False):
        super().__init__()
        self.model = Trunk(vocab, width, kv, inner, layers)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


class Mixed(nn.Module):
    """Own parameters beside children, a force-leaf, containers, depth."""
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(7))
        self.attention = nn.MultiheadAttention(8, 2)
        self.stack = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 30),
                                   nn.ModuleList([nn.Linear(30, 3), nn.Sequential(nn.Linear(3, 50))]))
        self.table = nn.ModuleDict({"a": nn.Linear(10, 10),
                                    "b": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(5, 5))})
        self.act = nn.GELU()
        self.nested = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(9, 9))), nn.Linear(2, 2))


def tree(root):
    ids = {id(m): i for i, (_, m) in enumerate(root.named_modules())}
    modules, owners = [], {}
    for name, m in root.named_modules():
        parent = root.get_submodule(name.rpartition(".")[0]) if name else None
        modules.append({"name": name, "class": type(m).__name__, "parent": ids[id(parent)] if name else -1,
                        "container": isinstance(m, (nn.ModuleList, nn.ModuleDict))})
        for p in m.parameters(recurse=False):
            owners.setdefault(id(p), []).append(ids[id(m)])
    return {"modules": modules,
            "parameters": [{"name": n, "shape": list(p.shape), "modules": owners[id(p)]}
                           for n, p in root.named_parameters()]}


def wrapped_by(root, policy, ignored=()):
    """The modules that the policy wraps, in order, and with which arguments if not the root's."""
    names = {id(m): n for n, m in root.named_modules()}
    order, settings = [], {}
    left_out = {m for n in ignored for m in root.get_submodule(n).modules()}
    parameters = {p for m in left_out for p in m.parameters()}

    def wrapper(module, **kwargs):
        order.append(names[id(module)])
        if kwargs.get("reshard", "auto") != "auto":
            settings[names[id(module)]] = kwargs["reshard"]
        return Wrapped(module)

    if isinstance(policy, wrap._Policy):
        targets = policy._run_policy(root, left_out, {"reshard": "auto"})
        targets.pop(root, None)
        wrap._post_order_apply(root, wrap._construct_wrap_fn(root, targets, wrapper))
    else:
        wrap._recursive_wrap(root, policy, wrapper, left_out, parameters, only_wrap_children=True)
    return order, settings


def by_class(classes):
    return functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls=set(classes))


def main():
    trees = {"llama": Llama, "llama-tied": functools.partial(Llama, tied=True), "mixed": Mixed,
             "wide-head": functools.partial(Llama, vocab=400)}
    sizes = [1, 2, 8, 31, 32, 33, 64, 80, 100, 110, 160, 192, 193, 288, 320, 480, 481, 640, 672, 673, 688, 689, 1000,
             1376, 2000, 2064, 2065, 5000]
    classes = [["Block"], ["Linear"], ["Norm"], ["Attention", "MLP"], ["Block", "Linear"],
               ["Block", "Attention", "MLP", "Norm"], ["Sequential"], ["Embedding", "Block"]]
    overrides = [{"Block": "false"}, {"Block": "true", "Embedding": "false"}, {"Linear": "2", "Block": None},
                 {"Sequential": "false", "Linear": None},
                 {"Norm": "false", "MLP": "true", "Attention": None}]
    leaves = [(["Attention"], None), (["MLP"], []), (None, ["Block"]), ([], ["ModuleList", "ModuleDict", "Linear"]),
              (["Sequential"], None),
              (None, ["Sequential"]), (None, []), (["Block", "MLP"], ["ModuleList", "Embedding"])]
    joined = [(["Norm"], 200), (["Block"], 300), (["Linear"], 1000), (["Sequential"], 20),
              (["MultiheadAttention"], 100), (["Attention", "Norm"], 64)]
    ignored = {"llama": [["lm_head"], ["model.layers.1"], ["model.layers.0.mlp", "model.norm"],
                         ["model.embed_tokens", "lm_head"], ["model.layers"]],
               "llama-tied": [["lm_head"]], "mixed": [["attention"], ["stack"], ["table.a", "nested"], ["stack.2"]],
               "wide-head": [["model"]]}
    out = {"source": "torch " + torch.__version__.split("+")[0] + ", torch.distributed.fsdp.wrap", "trees": {},
           "cases": []}

    def case(name, text, policy, left_out=()):
        wrapped, settings = wrapped_by(trees[name](), policy, left_out)
        c = {"tree": name, "policy": text, "wrapped": wrapped}
        if left_out:
            c["ignored"] = list(left_out)
        if settings:
            c["reshard"] = settings
        out["cases"].append(c)

    with torch.device("meta"):
        for name, make in trees.items():
            out["trees"][name] = tree(make())
            root = make()
            found = {type(m).__name__: type(m) for m in root.modules() if m is not root}

            def types(wanted):
                """None where a class is absent, or matches subclasses by instance: ours goes by name."""
                if not all(c in found for c in wanted):
                    return None
                matched = [m for m in root.modules() if m is not root
                           and isinstance(m, tuple(found[c] for c in wanted))]
                return [found[c] for c in wanted] if all(type(m).__name__ in wanted for m in matched) else None

            def policies(numbers):
                for n in numbers:
                    yield f"params:{n}", functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=n)
                for wanted in classes:
                    if types(wanted):
                        yield "class:" + ",".join(wanted), wrap.ModuleWrapPolicy(types(wanted))

            for text, policy in policies(sizes):
                case(name, text, policy)
            for n in [20, 64, 192, 480]:
                for leaf, exclude in leaves:
                    known = dict(found, ModuleList=nn.ModuleList, ModuleDict=nn.ModuleDict)
                    named = [c for c in [*(leaf or []), *(exclude or [])] if c not in ("ModuleList", "ModuleDict")]
                    if types(named) is None:
                        continue
                    text = f"params:{n}" + ("" if leaf is None else ";leaf=" + ",".join(leaf)) + ("" if exclude is None
                        else ";exclude=" + ",".join(exclude))
                    case(name, text, functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=n,
                                                       force_leaf_modules=None if leaf is None
                                                       else {known[c] for c in leaf},
                                                       exclude_wrap_modules=None if exclude is None
                                                       else {known[c] for c in exclude}))
            for wanted, n in joined:
                if types(wanted):
                    size = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=n)
                    case(name, f"class:{','.join(wanted)}|params:{n}",
                         functools.partial(wrap._or_policy, policies=[by_class(types(wanted)), size]))
            for a, b in [("Linear", "Norm"), ("Sequential", "MultiheadAttention")]:
                if types([a]) and types([b]):
                    case(name, f"class:{a}|class:{b}",
                         functools.partial(wrap._or_policy, policies=[by_class(types([a])), by_class(types([b]))]))
            for custom in overrides:
                if types(list(custom)):
                    kinds = {found[c]: r for c, r in custom.items()}
                    policy = wrap.CustomPolicy(lambda m, kinds=kinds: (False if type(m) not in kinds
                        else {"reshard": kinds[type(m)]} if kinds[type(m)] else True))
                    case(name, "class:" + ",".join(c if r is None else f"{c}={r}" for c, r in custom.items()), policy)
            for left_out in ignored[name]:
                for text, policy in policies([64, 192, 480]):
                    case(name, text, policy, left_out)
                size = functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=100)
                kind = "Linear" if types(["Linear"]) else "Sequential"
                case(name, f"class:{kind}|params:100",
                     functools.partial(wrap._or_policy, policies=[by_class(types([kind])), size]), left_out)
    rows = lambda items: "[\n" + ",\n".join("  " + json.dumps(i) for i in items) + "\n]"
    trees_text = ",\n".join(
        f'{json.dumps(n)}: {{"modules": {rows(t["modules"])},\n"parameters": {rows(t["parameters"])}}}'
        for n, t in out["trees"].items())
    text = (f'{{"source": {json.dumps(out["source"])},\n"trees": {{\n{trees_text}\n}},\n'
            f'"cases": {rows(out["cases"])}\n}}\n')
    (pathlib.Path(__file__).parent / "golden" / "wrap.json").write_text(text)


main()
