package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
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
	var tensors []Tensor
	var metadata map[string]string
	err := members(body, func(name string, value json.RawMessage) (err error) {
		if name == MetadataName {
			metadata, err = parseMetadata(value)
			return err
		}
		t, err := parseTensor(name, value, dataBytes)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		tensors = append(tensors, t)
		return nil
	})
	if err == nil {
		err = checkLayout(tensors, dataBytes)
	}
	if err != nil {
		return nil, nil, err
	}
	return tensors, metadata, nil
}

// checkLayout sorts tensors by their place in the data and returns an error
// unless they cover it exactly once.
func checkLayout(tensors []Tensor, dataBytes int64) error {
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		// An empty tensor stands before the one that begins where it ends.
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var end int64
	last := ""
	for _, t := range tensors {
		if t.begin < end {
			return fmt.Errorf("tensor %s: data_offsets [%d, %d] overlap tensor %s, which ends at %d",
				quote(t.Name), t.begin, t.end, quote(last), end)
		}
		if t.begin > end {
			return fmt.Errorf("tensor %s: data_offsets [%d, %d] leave a hole of %d bytes before it",
				quote(t.Name), t.begin, t.end, t.begin-end)
		}
		end, last = t.end, t.Name
	}
	if end != dataBytes {
		return fmt.Errorf("%d bytes of data are left over after the last tensor", dataBytes-end)
	}
	return nil
}

// maxAxes is the longest shape, the limit of NumPy and PyTorch. It bounds the
// memory that a header of MaxHeaderBytes can take.
const maxAxes = 64

// members calls member with each key of an object, in order, and its value. No key may occur twice.
// The JSON is known to be valid. Decoding into maps or structs would let a name win over an earlier one
// and match field names in any case.
func members(object json.RawMessage, member func(key string, value json.RawMessage) error) error {
	if object[0] != '{' {
		return fmt.Errorf("is %s, not an object", describe(object))
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, value := fmt.Sprint(token), json.RawMessage(nil)
		if seen[key] {
			return fmt.Errorf("name %s occurs twice", quote(key))
		}
		seen[key] = true
		if err := dec.Decode(&value); err != nil {
			return err
		}
		if err := member(key, value); err != nil {
			return err
		}
	}
	return nil
}

func parseText(value json.RawMessage) (s string, err error) {
	if value[0] != '"' {
		return "", fmt.Errorf("is %s, not a string", describe(value))
	}
	return s, json.Unmarshal(value, &s)
}

// parseSizes reads a list of non-negative integers, each at most limit.
func parseSizes(value json.RawMessage, limit uint64) (list []uint64, err error) {
	if value[0] != '[' {
		return nil, fmt.Errorf("is %s, not a list", describe(value))
	}
	dec := json.NewDecoder(bytes.NewReader(value))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		var x json.RawMessage
		if err := dec.Decode(&x); err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(string(x), 10, 64)
		switch {
		case x[0] != '-' && (x[0] < '0' || x[0] > '9'):
			return nil, fmt.Errorf("holds %s, not a number", describe(x))
		case errors.Is(err, strconv.ErrRange) || err == nil && n > limit:
			return nil, fmt.Errorf("holds %s, which is larger than %d", describe(x), limit)
		case err != nil:
			return nil, fmt.Errorf("holds %s, which is not a non-negative integer", describe(x))
		case len(list) == maxAxes:
			return nil, fmt.Errorf("holds more than %d numbers", maxAxes)
		}
		list = append(list, n)
	}
	return list, nil
}

func parseMetadata(value json.RawMessage) (map[string]string, error) {
	m := make(map[string]string)
	err := members(value, func(key string, value json.RawMessage) (err error) {
		if m[key], err = parseText(value); err != nil {
			return fmt.Errorf("%s %w", quote(key), err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", MetadataName, err)
	}
	return m, nil
}

func parseTensor(name string, value json.RawMessage, dataBytes int64) (Tensor, error) {
	t := Tensor{Name: name}
	missing := []string{"dtype", "shape", "data_offsets"}
	err := members(value, func(field string, value json.RawMessage) (err error) {
		var list []uint64
		switch field {
		case "dtype":
			var s string
			s, err = parseText(value)
			t.DType = DType(s)
		case "shape":
			list, err = parseSizes(value, math.MaxInt)
			t.Shape = make([]int, len(list))
			for i, d := range list {
				t.Shape[i] = int(d)
			}
		case "data_offsets":
			if list, err = parseSizes(value, math.MaxInt64); err == nil && len(list) != 2 {
				err = fmt.Errorf("holds %d numbers, not 2", len(list))
			}
			if err == nil {
				t.begin, t.end = int64(list[0]), int64(list[1])
			}
		default: // it could change what the data means
			return fmt.Errorf("field %s is not one of dtype, shape, data_offsets", quote(field))
		}
		if err != nil {
			return fmt.Errorf("%s %w", field, err)
		}
		missing = slices.DeleteFunc(missing, func(f string) bool { return f == field })
		return nil
	})
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("field %s is missing", missing[0])
	}
	if err != nil {
		return Tensor{}, err
	}
	return t, t.check(dataBytes)
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
			t.begin, t.end, t.end-t.begin, t.DType, formatShape(t.Shape), want)
	case t.end > dataBytes:
		return fmt.Errorf("data_offsets [%d, %d] run past the %d bytes of data that the file has", t.begin, t.end, dataBytes)
	}
	return nil
}

func describe(value json.RawMessage) string {
	const most = 40
	switch {
	case value[0] == '{':
		return "an object"
	case value[0] == '[':
		return "a list"
	case value[0] == '"':
		s, _ := parseText(value)
		return "the string " + quote(s)
	case len(value) > most:
		return fmt.Sprintf("a number of %d digits", len(value))
	}
	return string(value)
}
