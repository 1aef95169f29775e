"""Models of transformers by their configuration alone, and a batch for each."""
import json
import os
import pathlib

from fsdp_plan.errors import PlanError
from fsdp_plan.needs_torch import torch

try:
    import transformers
except ImportError:
    raise PlanError("--hf needs transformers, which is not installed: pip install transformers") from None

# Tried in turn where the configuration names no class.
KINDS = ("AutoModelForSpeechSeq2Seq", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM",
         "AutoModelForImageClassification", "AutoModelForMaskedLM")


def configuration(path):
    """path: config.json, or a folder that holds one."""
    path = pathlib.Path(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {os.strerror(error.errno)}") from None
    except ValueError as error:
        raise PlanError(f"{file}: is no JSON: {error}") from None
    if not isinstance(values, dict) or "model_type" not in values:
        raise PlanError(f"{file}: states no model_type: give the config.json of a model of transformers")
    kind = values.pop("model_type")
    try:
        return transformers.AutoConfig.for_model(kind, **values)
    except ValueError as error:
        raise PlanError(f"{file}: {error}") from None


def class_of(config):
    for name in config.architectures or []:
        if hasattr(transformers, name):
            return getattr(transformers, name)._from_config
    for name in KINDS:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            return auto.from_config
    raise PlanError(f"transformers has no model with a loss for {type(config).__name__}")


def settle(config):
    """No dropout: fine-tuning scripts turn it off, and plans do not know it."""
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for key in list(part.__dict__):
            if "drop" in key and isinstance(getattr(part, key), float):
                setattr(part, key, 0.0)
    return config


def factory(config):
    """A function that builds the model."""
    build = class_of(settle(config))
    return lambda: build(config)


def batch_of(config, seq_len):
    """One sequence for the model. seq_len: tokens, where it has any."""
    if hasattr(config, "image_size") and not hasattr(config, "text_config"):
        sides = config.image_size if isinstance(config.image_size, (tuple, list)) else (config.image_size,) * 2
        return {"pixel_values": torch.zeros(1, config.num_channels, *sides),
                "labels": torch.zeros(1, dtype=torch.int64)}
    if not seq_len:
        raise PlanError("--seq-len: is missing; give the tokens of a sequence")
    ids = torch.zeros(1, seq_len, dtype=torch.int64)
    if hasattr(config, "num_mel_bins"):
        return {"input_features": torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions), "labels": ids}
    return {"input_ids": ids, "labels": ids.clone()}
