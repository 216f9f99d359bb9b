package lm

import (
	"cmp"
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
	Normalizer   *rawStage
	PreTokenizer *rawStage `json:"pre_tokenizer"`
	Post         *rawStage `json:"post_processor"`
	Model        rawModel
}

type rawModel struct {
	Type         string
	Unknown      string            `json:"unk_token"`
	ByteFallback bool              `json:"byte_fallback"` // characters that are no token are bytes
	IgnoreMerges bool              `json:"ignore_merges"` // a piece that is a token needs no merges
	Prefix       string            `json:"continuing_subword_prefix"`
	Suffix       string            `json:"end_of_word_suffix"`
	Vocabulary   map[string]int32  `json:"vocab"`
	Merges       []json.RawMessage // "a b" or ["a", "b"]
}

// A rawStage is a normalizer, a pre-tokenizer or a post-processor.
type rawStage struct {
	Type string

	Normalizers   []rawStage
	PreTokenizers []rawStage `json:"pretokenizers"`
	Processors    []rawStage

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
func (s *rawStage) flatten() (list []rawStage) {
	if s == nil {
		return nil
	}
	if s.Type != "Sequence" {
		return []rawStage{*s}
	}
	for _, x := range slices.Concat(s.Normalizers, s.PreTokenizers, s.Processors) {
		list = append(list, x.flatten()...)
	}
	return list
}

// bpe is byte-pair encoding, of bytes as in GPT-2, Llama 3 and Qwen, or of characters as in Llama 2
// and Mistral.
type bpe struct {
	rawModel
	bytewise   bool // symbols are bytes
	stages     []stage
	ids        map[string]int32 // by bytes; special tokens are not among them
	merges     map[[2]int32]merge
	tokens     map[int32]string // what they are in a text
	size       int
	unknown    int32 // -1: none
	added      map[string]int32
	addedRE    *regexp.Regexp // the names of added
	begin, end []int32
}

// A stage appends what it makes of a piece of a text, of which first is the first.
type stage func(to []string, piece string, first bool) []string

// A merge makes a token of two.
type merge struct {
	rank  int
	token int32
}

func newBPE(raw *rawTokenizer) (*bpe, error) {
	m := raw.Model
	if m.Type != "BPE" || m.Prefix != "" || m.Suffix != "" {
		return nil, fmt.Errorf("model type %q, continuing_subword_prefix=%q, end_of_word_suffix=%q: want BPE without either", m.Type, m.Prefix, m.Suffix)
	}
	t := &bpe{rawModel: m, ids: map[string]int32{}, merges: map[[2]int32]merge{}, tokens: map[int32]string{}, unknown: -1, added: map[string]int32{}}
	if err := t.readStages(raw); err != nil {
		return nil, err
	}
	for text, id := range m.Vocabulary {
		token := t.bytesOf(text)
		t.ids[token], t.tokens[id] = id, t.written(token)
	}
	if err := t.readMerges(); err != nil {
		return nil, err
	}
	t.Vocabulary, t.Merges = nil, nil // which are megabytes
	if id, ok := m.Vocabulary[m.Unknown]; ok {
		t.unknown = id
	}
	var names []string
	for _, a := range raw.Added {
		if a.LStrip || a.RStrip || a.Single {
			return nil, fmt.Errorf("added token %q has lstrip, rstrip or single_word, which are not known", a.Content)
		}
		if t.added[a.Content], t.tokens[a.ID] = a.ID, ""; !a.Special {
			t.tokens[a.ID] = t.written(a.Content)
		}
		names = append(names, regexp.QuoteMeta(a.Content))
	}
	t.addedRE = regexp.MustCompile(cmp.Or(strings.Join(names, "|"), `[^\x00-\x{10ffff}]`)) // without names, nothing
	t.addedRE.Longest()
	for id := range t.tokens {
		if id < 0 {
			return nil, fmt.Errorf("token %d is not from 0 on", id)
		}
		t.size = max(t.size, int(id)+1)
	}
	return t, nil
}

// written returns what the bytes of a token are in a text.
func (t *bpe) written(token string) string {
	if t.bytewise {
		return token
	}
	var b byte
	if _, err := fmt.Sscanf(token, "<0x%02X>", &b); err == nil && len(token) == 6 {
		return string([]byte{b})
	}
	return strings.ReplaceAll(token, "▁", " ")
}

// readMerges reads the list of merges, the most important first.
func (t *bpe) readMerges() error {
	for rank, raw := range t.Merges {
		var pair []string
		var text string
		if json.Unmarshal(raw, &pair) != nil && json.Unmarshal(raw, &text) == nil {
			pair = strings.Split(text, " ")
		}
		if len(pair) != 2 {
			return fmt.Errorf("merge %d is %s, want two tokens", rank, raw)
		}
		a, b := t.bytesOf(pair[0]), t.bytesOf(pair[1])
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
func (t *bpe) bytesOf(text string) string {
	if !t.bytewise {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if c, ok := byteOf[r]; ok {
			b.WriteByte(c)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
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

// readStages reads the normalizer, the pre-tokenizer and the post-processor.
func (t *bpe) readStages(raw *rawTokenizer) error {
	for _, s := range raw.Normalizer.flatten() {
		var f func(text string) string
		switch {
		case s.Type == "NFC":
			f = norm.NFC.String
		case s.Type == "Prepend":
			f = func(text string) string { return s.Prepend + text }
		case s.Type == "Replace" && s.Pattern.String != "":
			f = func(text string) string { return strings.ReplaceAll(text, s.Pattern.String, s.Content) }
		default:
			return fmt.Errorf("normalizer %s is none of NFC, Prepend, Replace of a String", s.Type)
		}
		t.stages = append(t.stages, func(to []string, text string, _ bool) []string { return append(to, f(text)) })
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
			to := &t.begin
			for _, item := range s.Single {
				if _, ok := item["Sequence"]; ok {
					to = &t.end
				} else if id, ok := item["SpecialToken"].ID.(string); ok {
					*to = append(*to, s.SpecialTokens[id].IDs...)
				}
			}
		default:
			return fmt.Errorf("post_processor %s is neither ByteLevel nor TemplateProcessing", s.Type)
		}
	}
	return nil
}

// preTokenizer appends a stage that divides texts.
func (t *bpe) preTokenizer(s *rawStage) error {
	pattern := ""
	spaces := func(symbol, prepend string) { // are a symbol, which a text begins with
		t.stages = append(t.stages, func(to []string, text string, first bool) []string {
			text = strings.ReplaceAll(text, " ", symbol)
			if !strings.HasPrefix(text, symbol) && (prepend == "always" || prepend == "first" && first) {
				text = symbol + text
			}
			return append(to, text)
		})
	}
	switch {
	case s.Type == "ByteLevel":
		t.bytewise = true
		if s.PrefixSpace != nil && *s.PrefixSpace {
			spaces(" ", "always")
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
		if s.PrefixSpace != nil && !*s.PrefixSpace {
			s.PrependScheme = "never"
		}
		spaces(s.Replacement, cmp.Or(s.PrependScheme, "always"))
		if s.Split == nil || *s.Split {
			pattern = s.Replacement + "?[^" + s.Replacement + "]+|" + s.Replacement
		}
	default:
		return fmt.Errorf("pre_tokenizer %s is none of ByteLevel, Digits, Metaspace, Split of an isolated Regex", s.Type)
	}
	if pattern == "" {
		return nil
	}
	split, err := splitter(pattern)
	t.stages = append(t.stages, split)
	return err
}

// splitter returns the stage that divides texts into the matches of a pattern, as tokenizers write them, and what is between
// them. Go has no (?!\S), which leaves the last character of white space to the word behind it, and its \s is ASCII.
func splitter(pattern string) (stage, error) {
	text, class := strings.Replace(pattern, `\s+(?!\S)|\s+`, `(?P<gap>\s+)`, 1), false
	text = regexp.MustCompile(`\\.|[\[\]]`).ReplaceAllStringFunc(text, func(s string) string {
		const space = `\s\v\x{85}\p{Z}`
		switch {
		case s == `\s` && class:
			return space
		case s == `\s`:
			return "[" + space + "]"
		case len(s) == 1:
			class = s == "["
		}
		return s
	})
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("pattern %q is not known: %w", pattern, err)
	}
	gap := 2 * max(re.SubexpIndex("gap"), 0)
	return func(to []string, text string, _ bool) []string {
		for text != "" {
			m := re.FindStringSubmatchIndex(text)
			if m == nil || m[1] == 0 {
				return append(to, text)
			}
			from, end := m[0], m[1]
			if gap > 0 && m[gap] >= 0 && end < len(text) {
				if _, n := utf8.DecodeLastRuneInString(text[from:end]); end-n > from {
					end -= n
				}
			}
			if from > 0 {
				to = append(to, text[:from])
			}
			to, text = append(to, text[from:end]), text[end:]
		}
		return to
	}, nil
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
