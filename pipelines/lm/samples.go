package lm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/internal/text"
)

// texts turns texts into samples.
type texts struct {
	tokenizer Tokenizer
	end       []int32 // the token that ends a text; none if the model has none
	chat      func() (*Chat, error)
}

// A part is a part of a text, whose tokens are learned or not.
type part struct {
	text    string
	learned bool
}

// encode returns the tokens of a text, with the token that ends it if ended, and which of them are
// learned. A token of two parts is the later one's.
func (x *texts) encode(parts []part, ended bool) (ids []int32, learned []bool, err error) {
	whole := ""
	for _, p := range parts {
		whole += p.text
	}
	if ids, err = x.tokenizer.Encode(whole, true); err != nil {
		return nil, nil, err
	}
	if err := x.known(whole, ids); err != nil {
		return nil, nil, err
	}
	if n := len(ids); ended && x.end != nil && (n == 0 || ids[n-1] != x.end[0]) {
		ids = append(ids, x.end...)
	}
	learned = make([]bool, len(ids))
	before, at := "", 0
	for i, p := range parts {
		before += p.text
		end, last := len(ids), len(before) == len(whole)
		if !last && parts[i+1].learned == p.learned {
			continue
		}
		if !last {
			some, err := x.tokenizer.Encode(before, true)
			if err != nil {
				return nil, nil, err
			}
			for end = 0; end < min(len(some), len(ids)) && some[end] == ids[end]; {
				end++
			}
		}
		for ; at < end; at++ {
			learned[at] = p.learned
		}
	}
	return ids, learned, nil
}

// known returns an error if a text has a character that is no token.
func (x *texts) known(whole string, ids []int32) error {
	t, ok := x.tokenizer.(*bpe)
	if !ok || t.unknown < 0 || !slices.Contains(ids, t.unknown) {
		return nil
	}
	for _, r := range t.addedRE.ReplaceAllString(whole, "") {
		if ids, err := t.Encode(string(r), false); err != nil || slices.Contains(ids, t.unknown) {
			return fmt.Errorf("lm: %q is no token of the tokenizer", r)
		}
	}
	return nil // the text has the name of the unknown token
}

// samples returns a sample of each line of a file. A bad line is found among the next thousand, not after a long file.
func (x *texts) samples(path string, file []byte, o DataOptions) (all []example, err error) {
	line := 0
	for lines := range slices.Chunk(bytes.Split(file, []byte("\n")), 1000) {
		list, errs := make([]example, len(lines)), make([]error, len(lines))
		parallel.For(len(lines), func(i int) {
			if len(bytes.TrimSpace(lines[i])) > 0 {
				list[i], errs[i] = x.sample(lines[i], o)
			}
		})
		for i, err := range errs {
			if line++; err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, line, err)
			}
			if list[i].ids != nil {
				all = append(all, list[i])
			}
		}
	}
	return all, nil
}

// sample returns the sample of a line.
func (x *texts) sample(line []byte, o DataOptions) (s example, err error) {
	parts, ended, err := x.parts(line)
	if err != nil {
		return s, err
	}
	ids, learned, err := x.encode(parts, ended)
	if err != nil {
		return s, err
	}
	n := len(ids) - 1 // each predicts the next
	for n > 0 && !learned[n] {
		n-- // nothing is learned from what is behind the last that is
	}
	switch {
	case n < 1:
		return s, errors.New("lm: there is no token that follows another and is learned")
	case n > o.Seqlen && !o.Truncate:
		return s, fmt.Errorf("lm: %d tokens are more than seqlen=%d: lengthen rows, or truncate samples", n, o.Seqlen)
	}
	n = min(n, o.Seqlen)
	s.ids, s.labels = ids[:n:n], slices.Repeat([]int32{Ignored}, n)
	counted := false
	for i := range n {
		if learned[i+1] {
			s.labels[i], counted = ids[i+1], true
		}
	}
	if !counted {
		return s, fmt.Errorf("lm: none of the first seqlen=%d tokens is learned", o.Seqlen)
	}
	return s, nil
}

// parts returns the text of a line, and whether a token ends it.
func (x *texts) parts(line []byte) (parts []part, ended bool, err error) {
	var fields map[string]json.RawMessage
	if !utf8.Valid(line) {
		return nil, false, errors.New("lm: the line is not UTF-8")
	}
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, false, fmt.Errorf("lm: the line is no JSON object: %w", err)
	}
	has := func(name string) bool { return fields[name] != nil && string(fields[name]) != "null" }
	switch {
	case has("messages") && !has("text") && !has("prompt") && !has("completion"):
		parts, err = x.conversation(fields["messages"])
		return parts, false, err
	case has("text") && !has("messages") && !has("prompt") && !has("completion"):
		whole, err := textOf(fields, "text", false)
		return []part{{whole, true}}, true, err
	case has("prompt") && has("completion") && !has("text") && !has("messages"):
		prompt, err := textOf(fields, "prompt", true)
		if err != nil {
			return nil, false, err
		}
		completion, err := textOf(fields, "completion", false)
		return []part{{prompt, false}, {completion, true}}, true, err
	}
	return nil, false, errors.New("lm: the line has not one of text, prompt and completion, messages")
}

// textOf returns the string of a field.
func textOf(fields map[string]json.RawMessage, name string, empty bool) (string, error) {
	raw := fields[name]
	var s *string
	if json.Unmarshal(raw, &s) != nil || s == nil {
		return "", fmt.Errorf("lm: %s is %s, not a string", name, text.Short(string(raw), 40))
	}
	if strings.Contains(*s, "\ufffd") && !bytes.Contains(raw, []byte("\ufffd")) && !bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)) {
		return "", fmt.Errorf("lm: %s has half of a surrogate pair, which is no character", name)
	}
	if !empty && strings.TrimSpace(*s) == "" {
		return "", fmt.Errorf("lm: %s is empty", name)
	}
	return *s, nil
}

// conversation returns the parts of a conversation.
func (x *texts) conversation(raw json.RawMessage) ([]part, error) {
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("lm: messages is %s, not a list of objects", text.Short(string(raw), 40))
	}
	var messages []Message
	for i, fields := range list {
		role, err := textOf(fields, "role", false)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		content, err := textOf(fields, "content", role != "assistant")
		if err != nil {
			return nil, fmt.Errorf("message %d of the %s: %w", i, role, err)
		}
		messages = append(messages, Message{role, content})
	}
	if len(messages) == 0 || messages[len(messages)-1].Role != "assistant" {
		return nil, errors.New("lm: the last message is not the assistant's")
	}
	chat, err := x.chat()
	if err != nil {
		return nil, err
	}
	return chat.parts(messages)
}
