// Package lm runs and trains language models of Hugging Face checkpoints on Vulkan devices.
//
//	config.json          ReadConfig    sizes and options of a family
//	model.safetensors    Open          weights by their names, checked before anything is read
//	tokenizer.json       ReadTokenizer byte-pair encoding
//	chat_template        ReadChat      conversations as text
//
// A Generator continues texts. A Trainer trains all weights, or an adapter (LoRA).
//
// The families are those of Config.Architecture: LlamaForCausalLM (Llama 3, TinyLlama, SmolLM2),
// Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM and GPT2LMHeadModel.
package lm
