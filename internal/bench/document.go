package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/flashvk/flashvk/internal/text"
)

// Schema is the version of all JSON that the program writes for others to read. It grows when a
// key changes its meaning or goes; keys may be added without.
const Schema = 1

// WriteDocument writes JSON: an object with the fields of x, a struct or a map, and
//
//	schema   Schema
//	kind     what it is: bench, devices, train
//	made     the time, in UTC, as RFC 3339 has it
//	program  name, version and commit of the program
//
// Names of fields are written in snake_case.
func WriteDocument(w io.Writer, kind string, made time.Time, x any) error {
	head, err := json.Marshal(map[string]any{"schema": Schema, "kind": kind, "made": made.UTC().Format(time.RFC3339), "program": ReadBuildInfo().String()})
	if err != nil {
		return err
	}
	var raw bytes.Buffer
	body := json.NewEncoder(&raw)
	body.SetEscapeHTML(false)
	if err := body.Encode(x); err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(head[:len(head)-1])
	in := json.NewDecoder(&raw)
	in.UseNumber()
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("bench: a document is an object, not %v", t)
	}
	for in.More() {
		b.WriteByte(',')
		if err := copyMember(&b, in); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	var out bytes.Buffer
	if err := json.Indent(&out, b.Bytes(), "", "\t"); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = w.Write(out.Bytes())
	return err
}

// copyMember copies a key, in snake_case, and its value.
func copyMember(b *bytes.Buffer, in *json.Decoder) error {
	key, err := in.Token()
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "%q:", text.Snake(key.(string)))
	return copyValue(b, in)
}

// copyValue copies a value, with keys in snake_case.
func copyValue(b *bytes.Buffer, in *json.Decoder) error {
	t, err := in.Token()
	if err != nil {
		return err
	}
	open, ok := t.(json.Delim)
	if !ok {
		var scalar bytes.Buffer
		e := json.NewEncoder(&scalar)
		e.SetEscapeHTML(false)
		if err := e.Encode(t); err != nil {
			return err
		}
		b.Write(bytes.TrimSpace(scalar.Bytes()))
		return nil
	}
	b.WriteRune(rune(open))
	for first := true; in.More(); first = false {
		if !first {
			b.WriteByte(',')
		}
		one := copyValue
		if open == '{' {
			one = copyMember
		}
		if err := one(b, in); err != nil {
			return err
		}
	}
	end, err := in.Token()
	if err != nil {
		return err
	}
	b.WriteRune(rune(end.(json.Delim)))
	return nil
}
