package table

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Text returns a configuration in words, which [Parse] reads: its path, which is the field Impl if
// it has one, then a word for each choice that is not zero, in the order of the fields. Tags say
// how words are printed:
//
//	Subgroups int  `word:"sg%d"`
//	Splits    int  `word:"splits%d" least:"2"`               // smaller numbers have no word
//	BlockM    int  `word:"%dx%d BlockN" on:"scalar unfused"` // two fields in one word, on these paths
//	Threads   int  `word:"t%dx%d /ThreadsX"`                 // the first number is Threads / ThreadsX
//	Prefetch  bool `word:"prefetch"`
//	DQ        Tile `word:"dq"`                               // before the words of the struct
func Text(c any) string {
	var list []string
	v := reflect.ValueOf(c)
	path := ""
	if impl := v.FieldByName("Impl"); impl.IsValid() {
		path = fmt.Sprint(impl)
		list = append(list, path)
	}
	return strings.Join(appendWords(list, v, path), " ")
}

func appendWords(list []string, v reflect.Value, path string) []string {
	written := -1 // a field in the word of another
	for i, w := range choicesOf(v.Type()) {
		switch f := v.Field(i); {
		case w.format == "" || i == written || f.IsZero() || !w.isOn(path) || f.Kind() == reflect.Int && f.Int() < w.least:
		case f.Kind() == reflect.Struct:
			list = appendWords(append(list, w.format), f, path)
		case f.Kind() == reflect.Bool:
			list = append(list, w.format)
		default:
			list, written = append(list, w.text(v)), w.second
		}
	}
	return list
}

// Parse reads what Text returns, with spaces or commas between the words. What is the kernel, for
// errors.
func Parse[C any](what, text string) (c C, err error) {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
	all := reflect.ValueOf(&c).Elem()
	path := ""
	if impl := all.FieldByName("Impl"); impl.IsValid() {
		if len(words) == 0 || !setPath(impl, words[0]) {
			return c, fmt.Errorf("%s: configuration %q does not begin with a path", what, text)
		}
		path, words = words[0], words[1:]
	}
	part := all
	for _, word := range words {
		if inner, ok := set(all, word, path); inner.IsValid() {
			part = inner
		} else if !ok {
			if _, ok = set(part, word, path); !ok {
				return c, fmt.Errorf("%s: configuration %q: %q is not one of its choices", what, text, word)
			}
		}
	}
	return c, nil
}

// Must is Parse for the rows of a table, which are right.
func Must[C any](text string) C {
	c, err := Parse[C]("table", text)
	if err != nil {
		panic(err)
	}
	return c
}

// setPath sets a path other than the first, which is none.
func setPath(impl reflect.Value, name string) bool {
	for n := range uint64(16) {
		if impl.SetUint(n); n > 0 && fmt.Sprint(impl) == name {
			return true
		}
	}
	return false
}

// set sets the choice of a word, if it is one of v, or returns the part whose name it is.
func set(v reflect.Value, word, path string) (part reflect.Value, ok bool) {
	for i, w := range choicesOf(v.Type()) {
		switch f := v.Field(i); {
		case w.format == "" || !w.isOn(path):
		case f.Kind() == reflect.Struct && w.format == word:
			return f, true
		case f.Kind() == reflect.Bool && w.format == word:
			f.SetBool(true)
			return part, true
		case f.Kind() == reflect.Int && w.read(v, word):
			return part, true
		}
	}
	return part, false
}

// A choice is a field with its tags.
type choice struct {
	format  string
	on      []string // paths; none: all
	least   int64
	first   int     // the index of the field
	second  int     // of the other field in its word, -1 for none
	divided bool    // the first number is the first field divided by the second
	tune    []int64 // values that Grid and
	vary    []int64 // Changed try
}

var choices sync.Map // []choice of each type

// choicesOf returns the fields of a configuration, or of a part of one.
func choicesOf(t reflect.Type) []choice {
	if known, ok := choices.Load(t); ok {
		return known.([]choice)
	}
	list := make([]choice, t.NumField())
	for i := range list {
		tag := t.Field(i).Tag
		format, second, _ := strings.Cut(tag.Get("word"), " ")
		w := choice{format: format, on: strings.Fields(tag.Get("on")), first: i, second: -1, tune: numbers(tag.Get("tune")), vary: numbers(tag.Get("vary"))}
		w.least = append(numbers(tag.Get("least")), 0)[0]
		second, w.divided = strings.CutPrefix(second, "/")
		if f, ok := t.FieldByName(second); ok {
			w.second = f.Index[0]
		}
		list[i] = w
	}
	choices.Store(t, list)
	return list
}

func numbers(text string) (list []int64) {
	for _, word := range strings.Fields(text) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			panic(err) // a tag
		}
		list = append(list, n)
	}
	return list
}

func (w *choice) isOn(path string) bool { return len(w.on) == 0 || slices.Contains(w.on, path) }

func (w *choice) text(v reflect.Value) string {
	a := v.Field(w.first).Int()
	if w.second < 0 {
		return fmt.Sprintf(w.format, a)
	}
	b := v.Field(w.second).Int()
	if w.divided {
		a /= max(b, 1)
	}
	return fmt.Sprintf(w.format, a, b)
}

// read sets the numbers of a word, and reports whether the word names the choice.
func (w *choice) read(v reflect.Value, word string) bool {
	var n [2]int32
	if _, err := fmt.Sscanf(word, w.format, []any{&n[0], &n[1]}[:strings.Count(w.format, "%d")]...); err != nil || min(n[0], n[1]) < 0 {
		return false
	}
	first, of := int64(n[0]), reflect.New(v.Type()).Elem()
	if w.divided {
		first *= int64(n[1])
	}
	of.Set(v)
	of.Field(w.first).SetInt(first)
	if w.second >= 0 {
		of.Field(w.second).SetInt(int64(n[1]))
	}
	if w.text(of) != word {
		return false
	}
	v.Set(of)
	return true
}
