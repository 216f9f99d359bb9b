package lm

import (
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chatDir writes a folder with a chat template, and a tokenizer of bytes whose merges cross the ends of parts.
func chatDir(t *testing.T, template string) string {
	dir := t.TempDir()
	tokenizer := bytewise(`"added_tokens": [{"id": 290, "content": "<|im_start|>", "special": true}, {"id": 291, "content": "<|im_end|>", "special": true}],
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}`, "a b", "b c")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(tokenizer), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o666))
	return dir
}

func dataConfig() *Config {
	c := smallConfig("smollm2-135m")
	c.EOS = []int32{299}
	return c
}

// readLines reads samples, in their order.
func readLines(t *testing.T, dir string, o DataOptions, lines ...string) (*Data, error) {
	path := filepath.Join(dir, "data.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o666))
	d, _, err := ReadData(dir, dataConfig(), path, o)
	return d, err
}

func TestSamples(t *testing.T) {
	const no, a, b, c, ab, bc, start, end, eos = Ignored, 'a', 'b', 'c', 256, 257, 290, 291, 299
	byteIDs := func(text string) (ids []int32) {
		for _, b := range []byte(text) {
			ids = append(ids, int32(b))
		}
		return ids
	}
	none := func(n int) []int32 { return slices.Repeat([]int32{no}, n) }
	dir := chatDir(t, "<|im_start|>")
	for _, x := range []struct {
		line        string
		ids, labels []int32
	}{
		{`{"text": "abc", "id": 7, "messages": null}`, []int32{ab, c}, []int32{c, eos}},
		{`{"prompt": "xa", "completion": "cb"}`, []int32{'x', a, c, b}, []int32{no, c, b, eos}},
		{`{"prompt": "xa", "completion": "bc"}`, []int32{'x', ab, c}, []int32{ab, c, eos}}, // a token of both is learned
		{`{"prompt": "", "completion": "aa"}`, []int32{a, a}, []int32{a, eos}},
		{`{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},
			{"role": "user", "content": "c"}, {"role": "assistant", "content": " c"}]}`,
			slices.Concat([]int32{start}, byteIDs("system\nS"), []int32{end, '\n', start}, byteIDs("user\na"), []int32{end, '\n', start},
				byteIDs("assistant\n"), []int32{bc, end, '\n', start}, byteIDs("user\nc"), []int32{end, '\n', start}, byteIDs("assistant\n c")),
			slices.Concat(none(9+3+6+3+9), []int32{bc, end}, none(3+6+3+9), []int32{' ', c, end})},
	} {
		got := must(readLines(t, dir, DataOptions{Seqlen: 64}, strings.ReplaceAll(x.line, "\n", ""))).samples
		require.Equal(t, []example{{x.ids, x.labels}}, got, x.line)
	}
	_, err := readLines(t, dir, DataOptions{Seqlen: 64}, `{"text": "`+strings.Repeat("x", 64)+`"}`) // as long as a row
	require.NoError(t, err)
	d := must(readLines(t, dir, DataOptions{Seqlen: 3, Truncate: true}, `{"prompt": "xy", "completion": "zabc"}`))
	require.Equal(t, []example{{[]int32{'x', 'y', 'z'}, []int32{no, 'z', ab}}}, d.samples)
	_, err = readLines(t, dir, DataOptions{Seqlen: 1, Truncate: true}, `{"prompt": "xy", "completion": "zabc"}`)
	require.ErrorContains(t, err, "data.jsonl:1: lm: none of the first seqlen=1 tokens is learned")
}

// badLines has bad lines, each above its error.
//
//go:embed testdata/lines.txt
var badLines string

// TestLines has each kind of bad line at several places among good ones.
func TestLines(t *testing.T) {
	list := append(strings.Split(strings.TrimSpace(badLines), "\n"), "\ufeff{}", "lm: the line is no JSON object: invalid character",
		"{\"text\": \"\xff\"}", "lm: the line is not UTF-8")
	for pair := range slices.Chunk(list, 2) {
		dir, line, want := chatDir(t, "<|im_start|>"), pair[0], strings.TrimPrefix(pair[1], "\t")
		for _, at := range []int{1, 2, 7, 1001} {
			lines := slices.Repeat([]string{`{"text": "good"}`}, at+4)
			lines[at-1] = line
			lines[at+3] = "{" // a later one
			_, err := readLines(t, dir, DataOptions{Seqlen: 64}, lines...)
			require.ErrorContains(t, err, fmt.Sprintf("data.jsonl:%d: %s", at, want))
			require.NotContains(t, err.Error(), "\n")
		}
	}
}

// TestPack compares with a search through all rows.
func TestPack(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 100, 1000} {
		samples := make([]example, n)
		for i := range samples {
			samples[i].ids = make([]int32, 1+random.IntN(32))
		}
		var want [][]int
		used := make([]int, n)
		for _, s := range rand.New(rand.NewPCG(7, 0)).Perm(n) {
			row := slices.IndexFunc(want, func(row []int) bool {
				room := 32
				for _, x := range row {
					room -= len(samples[x].ids)
				}
				return room >= len(samples[s].ids)
			})
			if row < 0 {
				row, want = len(want), append(want, nil)
			}
			want[row], used[row] = append(want[row], s), used[row]+len(samples[s].ids)
		}
		d := &Data{Seqlen: 32, seed: 7, samples: samples}
		d.pack()
		require.Equal(t, want, d.rows)
		require.LessOrEqual(t, slices.Max(used), 32)
	}
}

// TestBatches wants each sample once in an epoch, among its own tokens, and rows of no meaning at the end
// of an evaluation.
func TestBatches(t *testing.T) {
	var lines []string
	for i := range 23 {
		lines = append(lines, fmt.Sprintf(`{"text": %q}`, strings.Repeat(string(rune('a'+i)), 1+i%7)))
	}
	d := must(readLines(t, t.TempDir(), DataOptions{Seqlen: 8, Seed: 3}, lines...))
	again := must(readLines(t, t.TempDir(), DataOptions{Seqlen: 8, Seed: 3}, lines...))
	most := 0
	count := func(batches int, rows int, batch func(i, rows int) (Batch, error)) map[string]int {
		texts := map[string]int{}
		for i := range batches {
			b := must(batch(i, rows))
			require.NoError(t, b.Check(&Config{Vocabulary: 300, Positions: 8}))
			require.Equal(t, [2]int{1, rows * 8}, b.Shape)
			s := b.sizes()
			require.LessOrEqual(t, s.Sequences, d.Sizes(rows).Sequences)
			require.LessOrEqual(t, s.Longest, d.Sizes(rows).Longest)
			most = max(most, s.Sequences)
			for s := range b.CuSeqlens[1:] {
				from, to := b.CuSeqlens[s], b.CuSeqlens[s+1]
				require.Equal(t, from/8, max(from, to-1)/8, "a sequence lies in two rows")
				text := ""
				for i := from; i < to && b.Labels[i] != Ignored; i++ {
					text += string(rune(b.IDs[i]))
					require.Equal(t, i-from, b.positions()[i])
					if want := b.Labels[i]; want != 299 {
						require.Equal(t, b.IDs[i], want)
					} else {
						texts[text]++
					}
				}
			}
		}
		return texts
	}
	epochs := count(d.Rows(), 3, d.Batch) // three epochs
	require.Len(t, epochs, 23)
	for text, n := range epochs {
		require.Equal(t, 3, n, text)
	}
	held := count((d.Rows()+3)/4, 4, d.Evaluation)
	require.Len(t, held, 23)
	most = 0
	count(d.Rows(), 1, d.Evaluation)
	require.Equal(t, Sizes{Batch: 1, Seq: 8, Sequences: most, Longest: 7}, d.Sizes(1))
	last := must(d.Evaluation((d.Rows()+3)/4, 4))
	require.Equal(t, slices.Repeat([]int32{Ignored}, 32), last.Labels)
	require.Equal(t, 7, last.sizes().Longest)
	require.NotEqual(t, must(d.Batch(0, d.Rows())).IDs, must(d.Batch(1, d.Rows())).IDs, "another epoch")
	for _, i := range []int{40, 3, 0, 17} { // in any order, as after a start from the middle
		require.Equal(t, must(d.Batch(i, 2)), must(again.Batch(i, 2)))
	}
}

// TestStreams reads the same tokens from a text and from files of tokens.
func TestStreams(t *testing.T) {
	dir, c := t.TempDir(), dataConfig()
	var ids16, ids32 []byte
	for _, id := range append([]int32("abcdefghijklmnopq"), int32(c.Vocabulary)-1) {
		ids16, ids32 = binary.LittleEndian.AppendUint16(ids16, uint16(id)), binary.LittleEndian.AppendUint32(ids32, uint32(id))
	}
	for name, text := range map[string][]byte{"a.txt": []byte("abcdefghijklmnopq"), "a.u16": ids16, "a.u32": ids32} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, text, 0o666))
		d, held, err := ReadData(dir, c, path, DataOptions{Seqlen: 4, HeldOut: 0.25})
		require.NoError(t, err)
		b := must(held.Evaluation(0, 2))
		require.Equal(t, Batch{IDs: []int32("mnop\x00\x00\x00\x00"), Labels: []int32{'n', 'o', 'p', 'q', -100, -100, -100, -100}, Shape: [2]int{2, 4}}, b)
		require.Equal(t, [2]int{3, 1}, [2]int{d.Rows(), held.Rows()})
		seen := map[string]bool{}
		for i := range 3 {
			b := must(d.Batch(i, 1))
			require.Equal(t, b.IDs[1:], b.Labels[:3])
			seen[string(b.IDs)] = true
		}
		require.Equal(t, map[string]bool{"abcd": true, "efgh": true, "ijkl": true}, seen)
		require.NoError(t, d.Close())
		require.NoError(t, held.Close())
	}
}

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
