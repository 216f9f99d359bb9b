package lm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The patterns of Llama 3 and Qwen 2, as their tokenizer.json have them.
const (
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// TestSplit has pieces that follow from the patterns by hand: (?!\S) takes all but the last space of
// several, and only (?i:…) has contractions in capitals.
func TestSplit(t *testing.T) {
	for _, c := range []struct{ pattern, text, want string }{
		{gpt2Pattern, "Hello  world's 12345 !?\n\n x", "Hello| | world|'s| 12345| !?|\n\n| x"},
		{gpt2Pattern, "a   b  ", "a|  | b|  "},
		{gpt2Pattern, "I'LL\u00a0 go\t", "I|'|LL|\u00a0| go|\t"},
		{llama3Pattern, "I'LL go 12345,\n\n  (x)", "I|'LL| go| |123|45|,\n\n| | (|x|)"},
		{qwen2Pattern, "é 12\u2003\u2003z", "é| |1|2|\u2003|\u2003z"},
	} {
		require.Equal(t, c.want, strings.Join(must(splitter(c.pattern))(nil, c.text, false), "|"))
	}
	_, err := splitter(`(?<=a)b`)
	require.ErrorContains(t, err, "is not known")
}

// bytewise returns a tokenizer.json of all bytes and more tokens, with a merge for each, which are
// written as GPT-2 does: Ġ is a space.
func bytewise(rest string, merges ...string) string {
	vocabulary := map[string]int{}
	for r, b := range byteOf {
		vocabulary[string(r)] = int(b)
	}
	for i, m := range merges {
		vocabulary[strings.ReplaceAll(m, " ", "")] = 256 + i
	}
	return fmt.Sprintf(`{%s, "model": {"type": "BPE", "ignore_merges": true, "vocab": %s, "merges": %s}}`, rest, must(json.Marshal(vocabulary)), must(json.Marshal(merges)))
}

func readTokenizer(t *testing.T, text string) (Tokenizer, error) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(text), 0o666))
	return ReadTokenizer(dir, 300)
}

func TestBytewise(t *testing.T) {
	text := bytewise(`"added_tokens": [{"id": 290, "content": "<|end|>", "special": true}, {"id": 291, "content": "<|end|>!", "special": false}],
		"normalizer": {"type": "NFC"},
		"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": false}]},
		"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<|end|>": {"ids": [290]}}}`,
		"l o", "Ġ lo", "lo lo", "a b", "b c", "ab c")
	tok := must(readTokenizer(t, text))
	for _, c := range []struct {
		text string
		want []int32
	}{
		{"lo lo", []int32{256, 257}},
		{"lololo", []int32{258, 256}}, // the leftmost pair first
		{"bc", []int32{260}},
		{"abc", []int32{261}}, // a b is before b c
		{"xabcbc", []int32{'x', 261, 260}},
		{"12", []int32{'1', '2'}},
		{"e\u0301", []int32{0xc3, 0xa9}}, // NFC: é
		{"a<|end|>b", []int32{'a', 290, 'b'}},
		{"a<|end|>!", []int32{'a', 291}}, // the longest name
	} {
		require.Equal(t, c.want, must(tok.Encode(c.text, false)), c.text)
	}
	require.Equal(t, []int32{290, 259}, must(tok.Encode("ab", true)))
	require.Equal(t, " lo", string(tok.Token(257)))
	require.Empty(t, tok.Token(290))
	require.Equal(t, "<|end|>!", string(tok.Token(291)))
	require.Empty(t, tok.Token(299))
	_, err := tok.Encode("\xff", false)
	require.EqualError(t, err, `lm: text "\xff" is not UTF-8`)
}

// TestCharacters has a tokenizer as Llama 2's.
func TestCharacters(t *testing.T) {
	const text = `{"added_tokens": [{"id": 1, "content": "<s>", "special": true}],
		"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
		"pre_tokenizer": %s,
		"model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": {"<unk>": 0, "<s>": 1, "<0xC3>": 2, "<0xA9>": 3, "▁": 4, "a": 5, "b": 6, "▁a": 7, "▁ab": 8},
		"merges": [["▁", "a"], ["▁a", "b"]]}}`
	tok := must(readTokenizer(t, fmt.Sprintf(text, "null")))
	require.Equal(t, []int32{8, 7, 2, 3, 0}, must(tok.Encode("ab aé\u4e00", false)))
	require.Equal(t, " ab", string(tok.Token(8)))
	require.Equal(t, []byte{0xc3}, tok.Token(2))

	meta := strings.Replace(fmt.Sprintf(text, `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}`), `"Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]`, `"NFC"`, 1)
	tok = must(readTokenizer(t, meta))
	require.Equal(t, []int32{8, 7, 1, 5}, must(tok.Encode("ab a<s>a", false))) // only the first section has a space
}

func TestChat(t *testing.T) {
	talk := []Message{{"user", "Hi "}, {"assistant", "Yes"}, {"user", "Go"}}
	for _, c := range []struct{ template, want string }{
		{`{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}`, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n"},
		{"<|start_header_id|> | trim", "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nGo<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
		{"[INST] trim", "[INST] Hi [/INST] Yes</s>[INST] Go [/INST]"},
		{"<|user|>", "<|user|>\nHi </s>\n<|assistant|>\nYes</s>\n<|user|>\nGo</s>\n<|assistant|>\n"},
	} {
		require.Equal(t, c.want, must(must(newChat(c.template)).Text(talk)))
	}
	_, err := newChat("{{ x }}")
	require.ErrorContains(t, err, "its family is not known")
	chat := must(newChat("[INST]"))
	_, err = chat.Text(talk[1:])
	require.EqualError(t, err, `lm: message 0 is of role "assistant", want "user": user and assistant take turns`)
	_, err = chat.Text(talk[:2])
	require.EqualError(t, err, "lm: the last message is not the user's")
}

func TestStream(t *testing.T) {
	s := Stream{Tokenizer: Bytes{}}
	text := ""
	for _, b := range []byte("aé\xff世b") {
		text += s.Next(int32(b)) + "|"
	}
	require.Equal(t, "a||é|\ufffd|||世|b|", text)
}
