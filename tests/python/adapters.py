"""Adapters of every linear layer, as peft puts them into a model, for the tests."""
import peft


def adapted(model):
    model = peft.inject_adapter_in_model(peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"), model)
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name)
    return model
