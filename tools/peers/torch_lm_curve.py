#!/usr/bin/env python3
"""Trains a language model with PyTorch as flashvk finetune does, on the same packed rows from the same weights.

    python3 tools/peers/torch_lm_curve.py --make data.jsonl docs/*.md
    flashvk pretrain CONFIG --data data.jsonl --out base --steps 1 --lr 1e-30 --seed 1
    flashvk finetune base --data data.jsonl --out start --steps 1 --lr 1e-30 --seed 1
    python3 tools/peers/torch_lm_curve.py --data data.jsonl --model base --adapter start --csv torch.csv
    flashvk finetune base --data data.jsonl --out out --batch 8 --accumulate 1 --steps 500 --seed 1 \\
        --lr 0.001 --csv flashvk.csv --curve curve --beside PyTorch=torch.csv

CONFIG is a folder with config.json of a Llama whose head is tied, without a tokenizer: tokens are bytes.
--make writes the paragraphs of files as samples. Without --adapter all weights are trained. The weights
are float32, products and attention bfloat16 by autocast, or all is float32. The log has the columns of
that of flashvk finetune, the rate being that of all steps.
"""
import argparse
import csv
import json
import math
import time

M64, M128 = (1 << 64) - 1, (1 << 128) - 1


def permutation(seed, stream, n):
    """rand.New(rand.NewPCG(seed, stream)).Perm(n) of Go."""
    state, order = seed << 64 | stream, list(range(n))

    def word():
        nonlocal state
        state = (state * (2549297995355413924 << 64 | 4865540595714422341) + (6364136223846793005 << 64 | 1442695040888963407)) & M128
        high, low = state >> 64, state & M64
        high = (high ^ high >> 32) * 0xDA942042E4DD58B5 & M64
        return (high ^ high >> 48) * (low | 1) & M64

    for i in range(n - 1, 0, -1):
        if i & (i + 1) == 0:
            j = word() & i
        else:
            product = (word() >> 32) * (i + 1)
            while product & 0xFFFFFFFF < (1 << 32) % (i + 1):
                product = (word() >> 32) * (i + 1)
            j = product >> 32
        order[i], order[j] = order[j], order[i]
    return order


def read_rows(path, seqlen, seed, end):
    """Returns rows of samples, which are tokens with the one that ends them: lm.Data.pack."""
    with open(path, encoding="utf-8") as f:
        samples = [list(json.loads(line)["text"].encode()) + [end] for line in f]
    rows, room = [], []
    for s in permutation(seed, 0, len(samples)):
        n = len(samples[s]) - 1
        at = next((i for i, x in enumerate(room) if x >= n), len(room))
        if at == len(room):
            rows.append([])
            room.append(seqlen)
        rows[at].append(samples[s])
        room[at] -= n
    return rows


def batches(rows, count, seqlen, seed):
    """Yields ids, labels, positions and the number of the sample of each token: lm.Data.Batch."""
    i = 0
    while True:
        batch = []
        for _ in range(count):
            epoch, at = divmod(i, len(rows))
            if at == 0:
                order = permutation(seed, 2 + epoch, len(rows))
            row = [(sample[j], sample[j + 1], j, n) for n, sample in enumerate(rows[order[at]]) for j in range(len(sample) - 1)]
            batch.append(row + [(0, -100, j, -1) for j in range(seqlen - len(row))])
            i += 1
        yield [[[token[k] for token in row] for row in batch] for k in range(4)]


def make(path, files):
    with open(path, "w", encoding="utf-8") as out:
        for name in files:
            with open(name, encoding="utf-8") as f:
                for text in f.read().split("\n\n"):
                    for at in range(0, len(text), 400):
                        out.write(json.dumps({"text": text[at : at + 400] + "\n"}) + "\n")


def load(a, config, device):
    """Returns the model."""
    import torch_lm
    d, heads = config["hidden_size"], config["num_attention_heads"]
    sizes = (d, config["num_hidden_layers"], heads, config["num_key_value_heads"], config.get("head_dim", d // heads),
             config["intermediate_size"], config["vocab_size"], True)
    tensors = torch_peer.read_tensors(a.model + "/model.safetensors", device)
    rank = 0
    if a.adapter:
        adapter = torch_peer.read_tensors(a.adapter + "/adapter_model.safetensors", device)
        tensors |= {name.removeprefix("base_model.model."): x for name, x in adapter.items()}
        rank = next(x.shape[0] for name, x in adapter.items() if "lora_A" in name)
    model, own = torch_lm.Llama(sizes, rank).float(), {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    parts = {"q": "self_attn.q_proj", "kk": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "n1": "input_layernorm", "n2": "post_attention_layernorm"}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name not in own:
                _, layer, part, *matrix = name.split(".")
                matrix = {"a": "lora_A.weight", "b": "lora_B.weight"}.get(*matrix, "weight") if matrix else "weight"
                own[name] = "model.layers.%s.%s.%s" % (layer, parts[part], matrix)
            p.copy_(tensors.pop(own[name]))
    assert not tensors, tensors.keys()
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", help="file of samples to write, nothing else")
    for name in ("data", "model", "adapter", "csv"):
        parser.add_argument("--" + name)
    for name, value in {"steps": 500, "batch": 8, "seqlen": 512, "seed": 1}.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("files", nargs="*")
    a = parser.parse_args()
    if a.make:
        return make(a.make, a.files)
    global torch, torch_peer
    import torch_peer
    torch, device = torch_peer.load()
    with open(a.model + "/config.json") as f:
        config = json.load(f)
    model, losses = load(a, config, device), []
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=a.lr, weight_decay=0.0, fused=True)
    source = batches(read_rows(a.data, a.seqlen, a.seed, config["eos_token_id"]), a.batch, a.seqlen, a.seed)
    causal = torch.ones(a.seqlen, a.seqlen, dtype=torch.bool, device=device).tril()
    rates = [a.lr * (i + 1) / (a.steps // 20) if i < a.steps // 20 else
             a.lr * (1 + math.cos(math.pi * (i - a.steps // 20) / (a.steps - a.steps // 20))) / 2 for i in range(a.steps)]
    begin = time.perf_counter()
    for i in range(a.steps):
        ids, labels, positions, sample = torch.tensor(next(source), device=device)
        mask = (sample[:, None, :, None] == sample[:, None, None, :]) & causal
        with torch.autocast(device, torch.bfloat16, enabled=a.dtype == "bfloat16"):
            loss = model(ids, positions, target=labels.flatten(), mask=mask)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.param_groups[0]["lr"] = rates[i]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    seconds = time.perf_counter() - begin
    with open(a.csv, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["step", "loss", "lr", "tokens_per_s", "seconds"])
        rate = a.batch * a.seqlen * a.steps / seconds
        for i, loss in enumerate(losses):
            out.writerow([i + 1, "%.7g" % loss, "%.7g" % rates[i], "%.0f" % rate, "%.3f" % (seconds * (i + 1) / a.steps)])
    print("PyTorch %s, %s: %d steps in %.1f s, loss of the last 20 %.4f" % (torch.__version__, a.dtype, a.steps, seconds, sum(losses[-20:]) / 20))


if __name__ == "__main__":
    main()
