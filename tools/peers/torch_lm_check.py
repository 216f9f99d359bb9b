#!/usr/bin/env python3
"""Compares language models of flashvk with those of Transformers.

    python3 tools/peers/torch_lm_check.py --flashvk bin/flashvk --dtype float32,bfloat16

For each family it saves a small model with random weights as Transformers does. Logits, loss and the
gradient by each parameter of flashvk run lm are compared with the model in float64: of rows, of the
same sequences packed into one row, and with a LoRA adapter; the tokens of flashvk generate with
generate in float32. Printed is a line for each case, with how far a tensor is off at most, as a part
of its norm, for each kind of tensor; the exit status is 1 if that is more than --limit of one of them.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch_peer

# What a tensor may be off by: roundings of activations, which add up over layers.
LIMITS = {"float32": 1e-5, "float16": 0.02, "bfloat16": 0.1}
LLAMA = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=64, rms_norm_eps=1e-5)
ROPE3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
FAMILIES = {
    "Llama, tied": ("LlamaConfig", dict(LLAMA, tie_word_embeddings=True)),
    "Llama 3": ("LlamaConfig", dict(LLAMA, tie_word_embeddings=False, rope_parameters=ROPE3)),
    "Llama, biases": ("LlamaConfig", dict(LLAMA, tie_word_embeddings=False, attention_bias=True)),
    "Qwen2": ("Qwen2Config", dict(LLAMA, tie_word_embeddings=True)),
    "Qwen3": ("Qwen3Config", dict(LLAMA, tie_word_embeddings=True)),
    "Mistral": ("MistralConfig", dict(LLAMA, tie_word_embeddings=False, sliding_window=5)),
    "GPT-2": ("GPT2Config", dict(vocab_size=300, n_embd=64, n_layer=2, n_head=4, n_positions=64)),
}
LENGTHS = (7, 12, 3)
RANK, ALPHA = 3, 5.0


def make(name, folder):
    """Saves a model, and returns it in float32 and in float64."""
    import transformers
    kind, fields = FAMILIES[name]
    config = getattr(transformers, kind)(**fields, bos_token_id=None, eos_token_id=None)
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * (0.2 if p.dim() == 1 else p.shape[-1] ** -0.5) + (p if p.dim() == 1 else 0))
    model.save_pretrained(folder)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa").eval()
    for m in whole.modules():
        if hasattr(m, "variance_epsilon"):
            m.forward = lambda x, m=m: m.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + m.variance_epsilon)
        if hasattr(m, "inv_freq"):
            m.forward = lambda x, position_ids, *_, m=m, **__: rotary(m, position_ids)
    return model, whole


def rotary(m, positions):
    """Transformers computes norms and angles in float32."""
    a = positions[..., None].double() * m.inv_freq.double()
    a = torch.cat((a, a), -1)
    return a.cos() * m.attention_scaling, a.sin() * m.attention_scaling


def expected(model, ids, labels, adapter):
    """Returns logits, loss and gradients of sequences."""
    leaves = adapter or dict(model.named_parameters())
    for x in leaves.values():
        x.grad = None
    weights = {}
    for a in adapter or ():
        if a.endswith("lora_A.weight"):
            product = a[len("base_model.model."):-len(".lora_A.weight")]
            w = model.get_parameter(product + ".weight")
            delta = ALPHA / RANK * adapter[a.replace("lora_A", "lora_B")] @ adapter[a]
            weights[product + ".weight"] = w.detach() + (delta if delta.shape == w.shape and not product.startswith("transformer.") else delta.T)
    logits = [torch.func.functional_call(model, weights, (x[None],), dict(use_cache=False)).logits[0] for x in ids]
    logits, labels = torch.cat(logits), torch.cat(labels)
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100)
    loss.backward()
    return {"logits": logits.detach(), "loss": loss.detach()} | {"grad." + n: x.grad for n, x in leaves.items()}


def adapter_of(model, folder):
    """Saves an adapter of all products of the layers, and returns it in float64."""
    os.makedirs(folder)
    targets, tensors = set(), {}
    for name, p in model.named_parameters():
        if p.dim() == 2 and (".layers." in name or ".h." in name):
            name, (out, inner) = name[:-len(".weight")], reversed(p.shape) if ".h." in name else p.shape
            targets.add(name.split(".")[-1])
            tensors["base_model.model.%s.lora_A.weight" % name] = torch.randn(RANK, inner) * inner**-0.5
            tensors["base_model.model.%s.lora_B.weight" % name] = torch.randn(out, RANK) * 0.2
    torch_peer.write_tensors(folder + "/adapter_model.safetensors", tensors)
    with open(folder + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": sorted(targets)}, f)
    return {name: x.double().requires_grad_() for name, x in tensors.items()}


def compare(what, want, path, limit):
    """Prints how far the tensors of a file are off, and returns whether all are right."""
    got, worst = torch_peer.read_tensors(path, "cpu"), {}
    if set(got) != set(want):
        sys.exit("%s: tensors %s differ" % (what, ", ".join(sorted(set(got) ^ set(want))[:4])))
    for name, x in want.items():
        kind = ".".join(name.split(".")[-3 if "lora" in name else -2:]).replace("grad.", "")
        off = ((got[name].double().reshape(x.shape) - x).norm() / x.norm()).item()
        worst[kind] = max(worst.get(kind, 0), off if off == off else float("inf"))
    print("%s: %s" % (what, ", ".join("%s %.1e" % x for x in sorted(worst.items(), key=lambda x: -x[1]))), flush=True)
    return max(worst.values()) <= limit


def family(name, a, folder):
    """Compares a family, and returns whether all is right."""
    model, whole = make(name, folder + "/model")
    adapter = adapter_of(whole, folder + "/adapter")
    good, flashvk = True, [a.flashvk, "run", "lm", "--model", folder + "/model", "--backward"]
    ids = [torch.randint(0, 300, (n,)) for n in LENGTHS]
    labels = [torch.cat((x[1:], torch.tensor([-100]))) for x in ids]
    row = {"ids": torch.cat(ids)[None].int(), "labels": torch.cat(labels)[None].int(),
           "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0).int()}
    rows = {"ids": torch.stack([ids[0], ids[1][:7]]).int(), "labels": torch.stack([labels[0], labels[1][:7]]).int()}
    for what, tensors, sequences, x, more in (
            ("rows", rows, 2, None, ()), ("packed", row, 3, None, ()), ("LoRA", row, 3, adapter, ("--adapter", folder + "/adapter"))):
        torch_peer.write_tensors(folder + "/in", tensors)
        n = 7 if tensors is rows else 99
        want = expected(whole, [y[:n] for y in ids[:sequences]], [y[:n] for y in labels[:sequences]], x)
        for dtype in a.dtype.split(","):
            subprocess.run([*flashvk, *more, "--in", folder + "/in", "--out", folder + "/out", "--dtype", dtype], check=True, stderr=subprocess.DEVNULL)
            good &= compare("%s, %s, %s" % (name, what, dtype), want, folder + "/out", a.limit or LIMITS[dtype])
    prompt = ",".join(map(str, ids[0].tolist()))
    out = subprocess.run([a.flashvk, "generate", folder + "/model", "--ids", prompt, "--tokens", "24", "--format", "ids", "--dtype", "float32"],
                         check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    tokens = model.generate(ids[0][None], attention_mask=torch.ones_like(ids[0][None]), max_new_tokens=24, do_sample=False, pad_token_id=0)[0, 7:].tolist()
    got = [int(x) for x in out.replace(",", " ").split()]
    if got == tokens:
        print("%s: generate has the same tokens" % name, flush=True)
        return good
    i = next((i for i, (x, y) in enumerate(zip(got, tokens)) if x != y), min(len(got), len(tokens)))
    if i == len(got):
        sys.exit("%s: generate has %d tokens" % (name, i))
    x = whole(torch.cat((ids[0], torch.tensor(tokens[:i], dtype=ids[0].dtype)))[None]).logits[0, -1]
    gap = (x.max() - x[got[i]]).item()
    print("%s: generate has another token %d, whose logit is %.1e less than the largest" % (name, i, gap), flush=True)
    return good and gap < 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flashvk", required=True, help="program to run")
    parser.add_argument("--dtype", default="float32", help="formats of activations, a comma list")
    parser.add_argument("--families", default=";".join(FAMILIES), help="a list, with ; between them")
    parser.add_argument("--limit", type=float, help="default that of the format")
    a = parser.parse_args()
    global torch
    import torch
    torch_peer.torch = torch
    torch.manual_seed(0)
    good = True
    for name in a.families.split(";"):
        with tempfile.TemporaryDirectory() as folder:
            good &= family(name, a, folder)
    sys.exit(not good)


main()
