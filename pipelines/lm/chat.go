package lm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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
