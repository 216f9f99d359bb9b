package lm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A Tokenizer turns text into tokens and back.
type Tokenizer interface {
	// Encode returns the tokens of a text, with those that the model wants at its beginning and end if
	// whole. The names of special tokens in the text are those tokens.
	Encode(text string, whole bool) ([]int32, error)
	// Token returns the bytes of a token; none for a special token, and for one that there is not.
	Token(id int32) []byte
	// Size is one more than the largest token.
	Size() int
}

// Bytes is the tokenizer without a file: token n is byte n.
type Bytes struct{}

// Encode returns the bytes of a text.
func (Bytes) Encode(text string, _ bool) (ids []int32, _ error) {
	for _, b := range []byte(text) {
		ids = append(ids, int32(b))
	}
	return ids, nil
}

// Token returns a byte.
func (Bytes) Token(id int32) []byte {
	if id < 0 || id > 255 {
		return nil
	}
	return []byte{byte(id)}
}

// Size returns 256.
func (Bytes) Size() int { return 256 }

// ReadTokenizer reads the tokenizer.json of a folder, or returns Bytes if there is none. Its error
// names what the package does not know, or a token beyond the vocabulary of the model.
func ReadTokenizer(dir string, vocabulary int) (Tokenizer, error) {
	var raw rawTokenizer
	var t Tokenizer = Bytes{}
	path := filepath.Join(dir, "tokenizer.json")
	err := readJSON(path, &raw)
	if err == nil {
		if t, err = newBPE(&raw); err != nil {
			return nil, fmt.Errorf("lm: %s: %w", path, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if t.Size() > vocabulary {
		return nil, fmt.Errorf("lm: %s: the tokenizer has token %d, but vocab_size=%d", dir, t.Size()-1, vocabulary)
	}
	return t, nil
}

// rawTokenizer is tokenizer.json.
type rawTokenizer struct {
	Added []struct {
		ID      int32
		Content string
		Special bool
		LStrip  bool
		RStrip  bool
		Single  bool `json:"single_word"`
	} `json:"added_tokens"`
	Normalizer   *stage
	PreTokenizer *stage `json:"pre_tokenizer"`
	Post         *stage `json:"post_processor"`
	Model        struct {
		Type         string
		Unknown      *string           `json:"unk_token"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
		Prefix       string            `json:"continuing_subword_prefix"`
		Suffix       string            `json:"end_of_word_suffix"`
		Vocabulary   map[string]int32  `json:"vocab"`
		Merges       []json.RawMessage // "a b" or ["a", "b"]
	}
}

// A stage is a normalizer, a pre-tokenizer or a post-processor.
type stage struct {
	Type string

	Normalizers   []stage
	PreTokenizers []stage `json:"pretokenizers"`
	Processors    []stage

	Prepend, Content string
	Pattern          struct{ String, Regex string }
	Behavior         string
	Invert           bool
	PrefixSpace      *bool `json:"add_prefix_space"`
	UseRegex         *bool `json:"use_regex"`
	IndividualDigits bool  `json:"individual_digits"`
	Replacement      string
	PrependScheme    string `json:"prepend_scheme"`
	Split            *bool
	Single           []map[string]struct{ ID any }
	SpecialTokens    map[string]struct{ IDs []int32 } `json:"special_tokens"`
}

// flatten returns the stages of a Sequence, or the stage itself.
func (s *stage) flatten() (list []stage) {
	if s == nil {
		return nil
	}
	if s.Type != "Sequence" {
		return []stage{*s}
	}
	for _, x := range slices.Concat(s.Normalizers, s.PreTokenizers, s.Processors) {
		list = append(list, x.flatten()...)
	}
	return list
}

// bpe is byte-pair encoding, of bytes as in GPT-2, Llama 3 and Qwen, or of characters as in Llama 2
// and Mistral.
type bpe struct {
	bytewise   bool // symbols are bytes
	fallback   bool // characters that are no token are bytes
	whole      bool // a piece that is a token needs no merges
	normalize  []func(text string, first bool) string
	split      []splitter
	ids        map[string]int32 // by bytes; special tokens are not among them
	merges     map[[2]int32]merge
	tokens     [][]byte // by id
	unknown    int32    // -1: none
	added      map[string]int32
	addedRE    *regexp.Regexp // nil: none
	begin, end []int32
}

// A merge makes a token of two.
type merge struct {
	rank  int
	token int32
}

func newBPE(raw *rawTokenizer) (*bpe, error) {
	m := &raw.Model
	if m.Type != "BPE" || m.Prefix != "" || m.Suffix != "" {
		return nil, fmt.Errorf("model type %q, continuing_subword_prefix=%q, end_of_word_suffix=%q: want BPE without either", m.Type, m.Prefix, m.Suffix)
	}
	t := &bpe{fallback: m.ByteFallback, whole: m.IgnoreMerges, ids: map[string]int32{}, merges: map[[2]int32]merge{}, unknown: -1, added: map[string]int32{}}
	if err := t.stages(raw); err != nil {
		return nil, err
	}
	set := func(id int32, text []byte) error {
		if id < 0 || id > 1<<24 {
			return fmt.Errorf("token %d is not from 0 to %d", id, 1<<24)
		}
		if n := int(id) + 1 - len(t.tokens); n > 0 {
			t.tokens = append(t.tokens, make([][]byte, n)...)
		}
		t.tokens[id] = text
		return nil
	}
	for text, id := range m.Vocabulary {
		b := t.bytesOf(text)
		t.ids[string(b)] = id
		if err := set(id, b); err != nil {
			return nil, err
		}
	}
	if err := t.readMerges(m.Merges); err != nil {
		return nil, err
	}
	if m.Unknown != nil {
		if id, ok := m.Vocabulary[*m.Unknown]; ok {
			t.unknown = id
		}
	}
	var names []string
	for _, a := range raw.Added {
		if a.LStrip || a.RStrip || a.Single {
			return nil, fmt.Errorf("added token %q has lstrip, rstrip or single_word, which are not known", a.Content)
		}
		text := []byte(a.Content)
		if a.Special {
			text = nil
		}
		if err := set(a.ID, text); err != nil {
			return nil, err
		}
		t.added[a.Content] = a.ID
		names = append(names, a.Content)
	}
	if names != nil {
		slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) }) // the longest name wins
		for i := range names {
			names[i] = regexp.QuoteMeta(names[i])
		}
		t.addedRE = regexp.MustCompile(strings.Join(names, "|"))
	}
	return t, nil
}

// readMerges reads the list of merges, the most important first.
func (t *bpe) readMerges(list []json.RawMessage) error {
	for rank, raw := range list {
		var pair []string
		var text string
		if json.Unmarshal(raw, &pair) != nil && json.Unmarshal(raw, &text) == nil {
			pair = strings.Split(text, " ")
		}
		if len(pair) != 2 {
			return fmt.Errorf("merge %d is %s, want two tokens", rank, raw)
		}
		a, b := string(t.bytesOf(pair[0])), string(t.bytesOf(pair[1]))
		left, ok1 := t.ids[a]
		right, ok2 := t.ids[b]
		token, ok3 := t.ids[a+b]
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf("merge %d is %s, but %q, %q or both together are no tokens", rank, raw, pair[0], pair[1])
		}
		if _, known := t.merges[[2]int32{left, right}]; !known {
			t.merges[[2]int32{left, right}] = merge{rank, token}
		}
	}
	return nil
}

// bytesOf returns the bytes of a token of the vocabulary. Bytewise, each character stands for a byte:
// printable ones for themselves, the others, in order, for 256 on.
func (t *bpe) bytesOf(text string) []byte {
	if !t.bytewise {
		return []byte(text)
	}
	var b []byte
	for _, r := range text {
		if c, ok := byteOf[r]; ok {
			b = append(b, c)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

// byteOf has the byte of each character of GPT-2's table.
var byteOf = func() map[rune]byte {
	m, next := map[rune]byte{}, rune(256)
	for b := range rune(256) {
		if b > ' ' && b < 0x7f || b > 0xa0 && b != 0xad {
			m[b] = byte(b)
		} else {
			m[next] = byte(b)
			next++
		}
	}
	return m
}()

// gpt2Pattern is how GPT-2 splits a text.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// stages reads the normalizer, the pre-tokenizer and the post-processor.
func (t *bpe) stages(raw *rawTokenizer) error {
	for _, s := range raw.Normalizer.flatten() {
		switch {
		case s.Type == "NFC":
			t.normalize = append(t.normalize, func(text string, _ bool) string { return norm.NFC.String(text) })
		case s.Type == "Prepend":
			t.normalize = append(t.normalize, func(text string, _ bool) string { return s.Prepend + text })
		case s.Type == "Replace" && s.Pattern.String != "":
			t.normalize = append(t.normalize, func(text string, _ bool) string { return strings.ReplaceAll(text, s.Pattern.String, s.Content) })
		default:
			return fmt.Errorf("normalizer %s is none of NFC, Prepend, Replace of a String", s.Type)
		}
	}
	for _, s := range raw.PreTokenizer.flatten() {
		if err := t.preTokenizer(&s); err != nil {
			return err
		}
	}
	for _, s := range raw.Post.flatten() {
		switch s.Type {
		case "ByteLevel": // changes offsets alone
		case "TemplateProcessing":
			t.template(&s)
		default:
			return fmt.Errorf("post_processor %s is neither ByteLevel nor TemplateProcessing", s.Type)
		}
	}
	return nil
}

// preTokenizer adds a stage that splits texts.
func (t *bpe) preTokenizer(s *stage) error {
	pattern := ""
	prefix := func(symbol string, firstOnly bool) {
		t.normalize = append(t.normalize, func(text string, first bool) string {
			if text == "" || strings.HasPrefix(text, symbol) || firstOnly && !first {
				return text
			}
			return symbol + text
		})
	}
	switch {
	case s.Type == "ByteLevel":
		t.bytewise = true
		if s.PrefixSpace != nil && *s.PrefixSpace {
			prefix(" ", false)
		}
		if s.UseRegex == nil || *s.UseRegex {
			pattern = gpt2Pattern
		}
	case s.Type == "Digits" && s.IndividualDigits:
		pattern = `\p{N}`
	case s.Type == "Digits":
		pattern = `\p{N}+`
	case s.Type == "Split" && s.Pattern.Regex != "" && s.Behavior == "Isolated" && !s.Invert:
		pattern = s.Pattern.Regex
	case s.Type == "Metaspace":
		t.normalize = append(t.normalize, func(text string, _ bool) string { return strings.ReplaceAll(text, " ", s.Replacement) })
		if s.PrependScheme != "never" && (s.PrefixSpace == nil || *s.PrefixSpace) {
			prefix(s.Replacement, s.PrependScheme == "first")
		}
		if s.Split == nil || *s.Split {
			pattern = s.Replacement + "?[^" + s.Replacement + "]+|" + s.Replacement
		}
	default:
		return fmt.Errorf("pre_tokenizer %s is none of ByteLevel, Digits, Metaspace, Split of an isolated Regex", s.Type)
	}
	if pattern == "" {
		return nil
	}
	split, err := newSplitter(pattern)
	t.split = append(t.split, split)
	return err
}

// template sets the tokens before and after a text.
func (t *bpe) template(s *stage) {
	to := &t.begin
	for _, item := range s.Single {
		if _, ok := item["Sequence"]; ok {
			to = &t.end
		} else if id, ok := item["SpecialToken"].ID.(string); ok {
			*to = append(*to, s.SpecialTokens[id].IDs...)
		}
	}
}

// A Stream turns tokens into text as they come. A character may be of several tokens.
type Stream struct {
	Tokenizer
	rest []byte // of a character
}

// Next returns the text that a token completes.
func (s *Stream) Next(id int32) string {
	s.rest = append(s.rest, s.Token(id)...)
	var b strings.Builder
	for utf8.FullRune(s.rest) {
		r, n := utf8.DecodeRune(s.rest)
		b.WriteRune(r)
		s.rest = s.rest[n:]
	}
	return b.String()
}
