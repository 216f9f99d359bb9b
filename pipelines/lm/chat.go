package lm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/internal/text"
)

// A Message is a part of a conversation. Role is system, user or assistant.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// A Chat writes conversations as a model was trained on them. The templates of checkpoints are
// programs of a language of their own (Jinja); Chat knows those of the supported families by their
// marks, and writes what they write for messages of text:
//
//	mark                 models                        a message
//	<|im_start|>         Qwen 2, Qwen 3, SmolLM2       <|im_start|>ROLE\nTEXT<|im_end|>\n
//	<|start_header_id|>  Llama 3                       <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>
//	[INST]               Llama 2, Mistral              [INST] TEXT [/INST], an answer after it
//	<|user|>             TinyLlama, Zephyr             <|ROLE|>\nTEXT</s>\n
type Chat struct {
	mark   string
	system string // the message of a conversation that has none
	dates  bool   // Llama 3.1 and 3.2 tell dates in the system message
	trim   bool
}

// ReadChat reads the template of a folder: chat_template.jinja, or chat_template of
// tokenizer_config.json.
func ReadChat(dir string) (*Chat, error) {
	template, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	path := filepath.Join(dir, "tokenizer_config.json")
	if errors.Is(err, fs.ErrNotExist) {
		var config struct {
			Template json.RawMessage `json:"chat_template"`
		}
		if err := readJSON(path, &config); err != nil {
			return nil, err
		}
		var text string
		var list []struct{ Name, Template string }
		if json.Unmarshal(config.Template, &list) == nil {
			for _, t := range list {
				if t.Name == "default" {
					text = t.Template
				}
			}
		} else if json.Unmarshal(config.Template, &text) != nil {
			return nil, fmt.Errorf("lm: %s has no chat_template", path)
		}
		template = []byte(text)
	} else if err != nil {
		return nil, fmt.Errorf("lm: %w", err)
	}
	c, err := newChat(string(template))
	if err != nil {
		return nil, fmt.Errorf("lm: %s: %w", dir, err)
	}
	return c, nil
}

// defaultSystem is the system message that templates have for conversations without one.
var defaultSystem = regexp.MustCompile(`<\|im_start\|>system(?:\\n|\n)([^'"<{}]+)<\|im_end\|>`)

func newChat(template string) (*Chat, error) {
	for _, mark := range []string{"<|im_start|>", "<|start_header_id|>", "[INST]", "<|user|>"} {
		if !strings.Contains(template, mark) {
			continue
		}
		c := &Chat{mark: mark, dates: strings.Contains(template, "Cutting Knowledge Date"), trim: strings.Contains(template, "trim")}
		if m := defaultSystem.FindStringSubmatch(template); m != nil {
			c.system = m[1]
		}
		return c, nil
	}
	return nil, fmt.Errorf("the chat template has none of <|im_start|>, <|start_header_id|>, [INST], <|user|>: its family is not known")
}

// Text returns a conversation, up to where the assistant's next answer begins. Tokenizer.Encode adds
// the token that begins a text.
func (c *Chat) Text(messages []Message) (string, error) {
	parts, err := c.parts(messages)
	if err != nil {
		return "", err
	}
	if len(messages) == 0 || messages[len(messages)-1].Role != "user" {
		return "", errors.New("lm: the last message is not the user's")
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.text)
	}
	before, _, _ := c.frame("assistant")
	return b.String() + before, nil
}

// parts returns a conversation in parts. What the assistant says is learned, with the mark that
// ends it.
func (c *Chat) parts(messages []Message) (list []part, err error) {
	system, rest := c.system, messages
	if len(messages) > 0 && messages[0].Role == "system" {
		system, rest = messages[0].Content, messages[1:]
	}
	if c.dates {
		system = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n" + system
	}
	message := func(role, text string) {
		if c.trim {
			text = strings.TrimSpace(text)
		}
		if c.mark == "[INST]" && role == "assistant" {
			text = " " + text
		}
		before, end, after := c.frame(role)
		list = append(list, part{before, false}, part{text + end, role == "assistant"}, part{after, false})
	}
	if system != "" && c.mark != "[INST]" {
		message("system", system)
		system = ""
	}
	for i, m := range rest {
		if want := []string{"user", "assistant"}[i%2]; m.Role != want {
			return nil, fmt.Errorf("lm: message %d is of role %q, want %q: user and assistant take turns", i, m.Role, want)
		}
		text := m.Content
		if system != "" && i == 0 {
			text = "<<SYS>>\n" + system + "\n<</SYS>>\n\n" + text
		}
		message(m.Role, text)
	}
	return list, nil
}

// frame returns what is before the text of a message, the mark that ends it, and what is after that.
func (c *Chat) frame(role string) (before, end, after string) {
	switch {
	case c.mark == "<|im_start|>":
		return "<|im_start|>" + role + "\n", "<|im_end|>", "\n"
	case c.mark == "<|start_header_id|>":
		return "<|start_header_id|>" + role + "<|end_header_id|>\n\n", "<|eot_id|>", ""
	case c.mark == "<|user|>":
		return "<|" + role + "|>\n", "</s>", "\n"
	case role == "user":
		return "[INST] ", " [/INST]", ""
	}
	return "", "</s>", ""
}

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
