package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/flashvk/flashvk/internal/text"
)

// Schema is the version of all JSON that the program writes for others to read. It grows when a
// key changes its meaning or goes; keys may be added without.
const Schema = 1

// WriteDocument writes JSON: an object with the fields of x, a struct or a map, and, all sorted,
//
//	schema   Schema
//	kind     what it is: bench, devices, train
//	made     the time, in UTC, as RFC 3339 has it
//	program  name, version and commit of the program
//
// Names of fields are written in snake_case.
func WriteDocument(w io.Writer, kind string, made time.Time, x any) error {
	raw, err := json.Marshal(x)
	if err != nil {
		return err
	}
	in := json.NewDecoder(bytes.NewReader(raw))
	in.UseNumber()
	var body any
	if err := in.Decode(&body); err != nil {
		return err
	}
	object, ok := snake(body).(map[string]any)
	if !ok {
		return fmt.Errorf("bench: a document is an object, not %T", x)
	}
	maps.Copy(object, map[string]any{"schema": Schema, "kind": kind, "made": made.UTC().Format(time.RFC3339), "program": ReadBuildInfo().String()})
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "\t")
	return out.Encode(object)
}

// snake returns a value of JSON with keys in snake_case.
func snake(x any) any {
	switch x := x.(type) {
	case []any:
		for i := range x {
			x[i] = snake(x[i])
		}
	case map[string]any:
		object := map[string]any{}
		for key, value := range x {
			object[text.Snake(key)] = snake(value)
		}
		return object
	}
	return x
}
