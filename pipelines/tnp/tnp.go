// Package tnp is a transformer neural process, with its loss, its gradients and its training
// step. The model sees points of a function, the context, and predicts the distribution of the
// function at other points, the targets.
//
//	token   = (x, y, 1) of the context, (x, 0, -1) of a target: package gp
//	h       = token * embedᵀ
//	h       = h + attention(LayerNorm(h)) * outᵀ                   for every block: targets and context
//	h       = h + silu(LayerNorm(h) * upᵀ) * downᵀ                 see the context, none sees a target
//	heads   = silu(LayerNorm(h) * heads.up[k]) * heads.down[k]     of targets: logit, mu, log sigma
//	log_p   = logsumexp over k of log_softmax(logit)[k] - ((y - mu[k]) / sigma[k])² / 2 - log sigma[k] - log(2π) / 2
//	loss    = -mean(log_p)
//
// There is no bias, no dropout, no mask and no encoding of positions, so the order of points does
// not matter. Norms have a weight only.
//
//	tensor  shape                                format
//	X       (batch, context+targets, input_dim)  the model's
//	Y       (batch, targets)                     float32
//
// Config has the sizes of the model, Shape the sizes of a batch, and Presets both under a name.
// Params lists the parameters with the names of a PyTorch state dict. Init makes the first
// weights. Load and Save read and write them as safetensors.
//
// It is the TNP-D of Nguyen and Grover, Transformer Neural Processes (arXiv:2207.04179), with a
// mixture for each target.
package tnp

// NormEps is what LayerNorm adds to the variance.
const NormEps = 1e-5
