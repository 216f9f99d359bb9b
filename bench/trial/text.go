package trial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Encode writes a problem as flashvk selftest --problem takes it: the kernel's name, a
// colon, and the problem as JSON.
func Encode(k *Kernel, p Problem) string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("trial: %v: %v", p, err)) // a bug: fields are plain
	}
	return k.Name + ":" + string(text)
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
	decoder := json.NewDecoder(bytes.NewReader([]byte(rest)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(p); err != nil {
		return nil, nil, fmt.Errorf("trial: problem of %s: %w", name, err)
	}
	return &k, p, nil
}
