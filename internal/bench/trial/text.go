package trial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Encode writes a problem as flashvk selftest --problem takes it: the kernel's name, a
// colon, and the problem as JSON without the fields that are zero.
func Encode(k *Kernel, p Problem) string {
	text, err := json.Marshal(p)
	var fields map[string]any
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // seeds have more digits than a float64
		err = d.Decode(&fields)
	}
	if err == nil {
		text, err = json.Marshal(withoutZeros(fields))
	}
	if err != nil {
		panic(fmt.Sprintf("trial: %v: %v", p, err)) // a bug: fields are plain
	}
	return k.Name + ":" + string(text)
}

// withoutZeros removes the fields of an object that hold zero values, and returns nil if
// none are left.
func withoutZeros(fields map[string]any) any {
	for name, x := range fields {
		if object, ok := x.(map[string]any); ok {
			x = withoutZeros(object)
		}
		if x == nil || x == false || x == "" || x == json.Number("0") {
			delete(fields, name)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return fields
}

// Decode reads what Encode writes.
func Decode(text string) (*Kernel, Problem, error) {
	name, rest, ok := strings.Cut(text, ":")
	if !ok {
		return nil, nil, fmt.Errorf("trial: problem %q is not a kernel's name, a colon, and JSON", text)
	}
	k, err := Find(name)
	if err != nil {
		return nil, nil, err
	}
	p := k.New()
	if err := strictly([]byte(rest), p); err != nil {
		return nil, nil, fmt.Errorf("trial: problem of %s: %w", name, err)
	}
	return &k, p, nil
}

// strictly reads JSON all of whose fields must be known.
func strictly(text []byte, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(to)
}
