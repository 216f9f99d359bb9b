package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/flashvk/flashvk/internal/text"
)

// parseHeader reads the JSON header of a file whose data has dataBytes bytes.
// The tensors come in the order of their data.
func parseHeader(header []byte, dataBytes int64) ([]Tensor, map[string]string, error) {
	body := bytes.TrimRight(header, " ")
	switch {
	case len(body) == 0 || body[0] != '{':
		return nil, nil, errors.New("header does not begin with {")
	case body[len(body)-1] != '}':
		return nil, nil, errors.New("header does not end with } and spaces")
	case !utf8.Valid(body):
		return nil, nil, errors.New("header is not UTF-8")
	case !json.Valid(body):
		return nil, nil, errors.New("header is not JSON")
	}
	names, values, err := members(body)
	if err != nil {
		return nil, nil, err
	}
	var tensors []Tensor
	var metadata map[string]string
	for _, name := range names {
		if name == MetadataName {
			if metadata, err = parseMetadata(values[name]); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", MetadataName, err)
			}
			continue
		}
		t, err := parseTensor(values[name])
		if t.Name = name; err == nil {
			err = t.check(dataBytes)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %.80q: %w", name, err)
		}
		tensors = append(tensors, t)
	}
	return tensors, metadata, checkLayout(tensors, dataBytes)
}

// checkLayout sorts tensors by their place in the data and returns an error
// unless they cover it exactly once.
func checkLayout(tensors []Tensor, dataBytes int64) error {
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		// An empty tensor stands before the one that begins where it ends.
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var last Tensor
	for _, t := range tensors {
		if t.begin < last.end {
			return fmt.Errorf("tensor %.80q: data_offsets [%d, %d] overlap tensor %.80q, which ends at %d", t.Name, t.begin, t.end, last.Name, last.end)
		}
		if t.begin > last.end {
			return fmt.Errorf("tensor %.80q: data_offsets [%d, %d] leave a hole of %d bytes before it", t.Name, t.begin, t.end, t.begin-last.end)
		}
		last = t
	}
	if last.end != dataBytes {
		return fmt.Errorf("%d bytes of data are left over after the last tensor", dataBytes-last.end)
	}
	return nil
}

// maxAxes is the longest shape, the limit of NumPy and PyTorch. It bounds the
// memory that a header of MaxHeaderBytes can take.
const maxAxes = 64

// members returns the keys of an object, in order, none of which may occur twice, and their values.
// The JSON is known to be valid. Decoding into maps or structs would let a name win over an earlier one
// and match field names in any case.
func members(object json.RawMessage) (keys []string, values map[string]json.RawMessage, err error) {
	if object[0] != '{' {
		return nil, nil, fmt.Errorf("is %s, not an object", short(object))
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, nil, err
	}
	values = map[string]json.RawMessage{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, nil, err
		}
		key := fmt.Sprint(token)
		if values[key] != nil {
			return nil, nil, fmt.Errorf("name %.80q occurs twice", key)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, nil, err
		}
		keys, values[key] = append(keys, key), value
	}
	return keys, values, nil
}

func parseText(value json.RawMessage) (s string, err error) {
	if value[0] != '"' {
		return "", fmt.Errorf("is %s, not a string", short(value))
	}
	return s, json.Unmarshal(value, &s)
}

// parseSizes reads a list of non-negative integers.
func parseSizes(value json.RawMessage) ([]int, error) {
	var list []*int // nil: null
	err := json.Unmarshal(value, &list)
	if err != nil || value[0] != '[' || len(list) > maxAxes || slices.ContainsFunc(list, func(n *int) bool { return n == nil || *n < 0 }) {
		return nil, fmt.Errorf("is %s, not a list of at most %d integers from 0 to %d", short(value), maxAxes, math.MaxInt)
	}
	sizes := make([]int, len(list))
	for i, n := range list {
		sizes[i] = *n
	}
	return sizes, nil
}

func parseMetadata(value json.RawMessage) (map[string]string, error) {
	keys, values, err := members(value)
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, key := range keys {
		if m[key], err = parseText(values[key]); err != nil {
			return nil, fmt.Errorf("%.80q %w", key, err)
		}
	}
	return m, nil
}

func parseTensor(value json.RawMessage) (t Tensor, err error) {
	known := []string{"dtype", "shape", "data_offsets"}
	keys, values, err := members(value)
	if err != nil {
		return t, err
	}
	for _, key := range keys {
		if !slices.Contains(known, key) { // it could change what the data means
			return t, fmt.Errorf("field %.80q is not one of dtype, shape, data_offsets", key)
		}
	}
	for _, key := range known {
		if values[key] == nil {
			return t, fmt.Errorf("field %s is missing", key)
		}
	}
	format, err := parseText(values["dtype"])
	if err != nil {
		return t, fmt.Errorf("dtype %w", err)
	}
	t.DType = DType(format)
	if t.Shape, err = parseSizes(values["shape"]); err != nil {
		return t, fmt.Errorf("shape %w", err)
	}
	offsets, err := parseSizes(values["data_offsets"])
	if err == nil && len(offsets) != 2 {
		err = fmt.Errorf("holds %d numbers, not 2", len(offsets))
	}
	if err != nil {
		return t, fmt.Errorf("data_offsets %w", err)
	}
	t.begin, t.end = int64(offsets[0]), int64(offsets[1])
	return t, nil
}

// check compares the offsets of t with its dtype, its shape and the file.
func (t Tensor) check(dataBytes int64) error {
	want, err := byteSize(t.DType, t.Shape)
	switch {
	case err != nil:
		return err
	case t.begin > t.end:
		return fmt.Errorf("data_offsets [%d, %d] run backwards", t.begin, t.end)
	case t.end-t.begin != want:
		return fmt.Errorf("data_offsets [%d, %d] hold %d bytes, %s of shape %s needs %d",
			t.begin, t.end, t.end-t.begin, t.DType, shapeText(t.Shape), want)
	case t.end > dataBytes:
		return fmt.Errorf("data_offsets [%d, %d] run past the %d bytes of data that the file has", t.begin, t.end, dataBytes)
	}
	return nil
}

// short returns the beginning of a value for a message.
func short(value json.RawMessage) string { return text.Short(string(value), 40) }

func shapeText(shape []int) string { return text.Short(fmt.Sprint(shape), 100) }
