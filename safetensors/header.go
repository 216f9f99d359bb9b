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
	p := &headerParser{dec: json.NewDecoder(bytes.NewReader(body))}
	p.dec.UseNumber()

	var tensors []Tensor
	var metadata map[string]string
	err := p.object(func(name string) error {
		if name == MetadataName {
			m, err := p.metadata()
			metadata = m
			return err
		}
		t, err := p.tensor(name, dataBytes)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		tensors = append(tensors, t)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if err := checkLayout(tensors, dataBytes); err != nil {
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

// A headerParser walks through JSON that is known to be valid, token by
// token: decoding into maps or structs would let a name win over an earlier
// one and match field names in any case.
type headerParser struct{ dec *json.Decoder }

// object reads an object. It calls member with each key, and member reads the value. No key may
// occur twice.
func (p *headerParser) object(member func(key string) error) error {
	tok, err := p.dec.Token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("is %s, not an object", describe(tok))
	}
	seen := make(map[string]bool)
	for p.dec.More() {
		tok, err := p.dec.Token()
		if err != nil {
			return err
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("key is %s, not a string", describe(tok))
		}
		if seen[key] {
			return fmt.Errorf("name %s occurs twice", quote(key))
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	_, err = p.dec.Token()
	return err
}

// text reads a string.
func (p *headerParser) text() (string, error) {
	tok, err := p.dec.Token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("is %s, not a string", describe(tok))
	}
	return s, nil
}

// sizes reads a list of non-negative integers, each at most limit.
func (p *headerParser) sizes(limit uint64) ([]uint64, error) {
	tok, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	if tok != json.Delim('[') {
		return nil, fmt.Errorf("is %s, not a list", describe(tok))
	}
	list := []uint64{}
	for p.dec.More() {
		tok, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		number, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("holds %s, not a number", describe(tok))
		}
		n, err := strconv.ParseUint(number.String(), 10, 64)
		if errors.Is(err, strconv.ErrRange) || err == nil && n > limit {
			return nil, fmt.Errorf("holds %s, which is larger than %d", describe(tok), limit)
		}
		if err != nil {
			return nil, fmt.Errorf("holds %s, which is not a non-negative integer", describe(tok))
		}
		if list = append(list, n); len(list) > maxAxes {
			return nil, fmt.Errorf("holds more than %d numbers", maxAxes)
		}
	}
	_, err = p.dec.Token()
	return list, err
}

// metadata reads the value of __metadata__.
func (p *headerParser) metadata() (map[string]string, error) {
	m := make(map[string]string)
	err := p.object(func(key string) error {
		s, err := p.text()
		if err != nil {
			return fmt.Errorf("%s %w", quote(key), err)
		}
		m[key] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", MetadataName, err)
	}
	return m, nil
}

// tensor reads the description of one tensor and checks it by itself.
func (p *headerParser) tensor(name string, dataBytes int64) (Tensor, error) {
	t := Tensor{Name: name}
	have := make(map[string]bool)
	err := p.object(func(field string) error {
		have[field] = true
		switch field {
		case "dtype":
			s, err := p.text()
			t.DType = DType(s)
			return wrapField(field, err)
		case "shape":
			list, err := p.sizes(math.MaxInt)
			t.Shape = make([]int, len(list))
			for i, d := range list {
				t.Shape[i] = int(d)
			}
			return wrapField(field, err)
		case "data_offsets":
			list, err := p.sizes(math.MaxInt64)
			if err == nil && len(list) != 2 {
				err = fmt.Errorf("holds %d numbers, not 2", len(list))
			}
			if err == nil {
				t.begin, t.end = int64(list[0]), int64(list[1])
			}
			return wrapField(field, err)
		}
		// A field we do not know could change what the data means.
		return fmt.Errorf("field %s is not one of dtype, shape, data_offsets", quote(field))
	})
	if err != nil {
		return Tensor{}, err
	}
	for _, field := range []string{"dtype", "shape", "data_offsets"} {
		if !have[field] {
			return Tensor{}, fmt.Errorf("field %s is missing", field)
		}
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

func wrapField(field string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %w", field, err)
	}
	return nil
}

// describe names a JSON value for a message.
func describe(tok json.Token) string {
	switch v := tok.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case string:
		return "the string " + quote(v)
	case json.Number:
		const most = 40
		if s := v.String(); len(s) <= most {
			return s
		}
		return "a number of " + strconv.Itoa(len(v)) + " digits"
	case json.Delim:
		if v == '{' {
			return "an object"
		}
		return "a list"
	}
	return fmt.Sprintf("%T", tok)
}
