package table

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
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
	for i := range v.NumField() {
		f, w := v.Field(i), wordOf(v, i)
		switch {
		case w.format == "" || f.IsZero() || !w.isOn(path) || f.Kind() == reflect.Int && f.Int() < w.least:
		case f.Kind() == reflect.Struct:
			list = appendWords(append(list, w.format), f, path)
		default:
			list = append(list, w.text())
		}
	}
	return list
}

// Parse reads what Text returns, with spaces or commas between the words. What is the kernel, for errors.
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
		if inner := partOf(all, word); inner.IsValid() {
			part = inner
		} else if !setWord(part, word, path) && !setWord(all, word, path) {
			return c, fmt.Errorf("%s: configuration %q: %q is not one of its choices", what, text, word)
		}
	}
	return c, nil
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

// partOf returns the struct that a word is the name of.
func partOf(v reflect.Value, word string) (part reflect.Value) {
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Struct && wordOf(v, i).format == word {
			part = v.Field(i)
		}
	}
	return part
}

// setWord sets the choice of a word, if it is one of v.
func setWord(v reflect.Value, word, path string) bool {
	for i := range v.NumField() {
		f, w := v.Field(i), wordOf(v, i)
		switch {
		case w.format == "" || !w.isOn(path):
		case f.Kind() == reflect.Bool && w.format == word:
			f.SetBool(true)
			return true
		case f.Kind() == reflect.Int && w.read(word):
			return true
		}
	}
	return false
}

// A choice is a field with its tag.
type choice struct {
	format  string
	on      string
	least   int64
	fields  []reflect.Value // one or two
	divided bool            // the first number is that field divided by the second
}

func wordOf(v reflect.Value, i int) choice {
	tag := v.Type().Field(i).Tag
	format, second, _ := strings.Cut(tag.Get("word"), " ")
	w := choice{format: format, on: tag.Get("on"), fields: []reflect.Value{v.Field(i)}}
	w.least, _ = strconv.ParseInt(tag.Get("least"), 10, 64)
	if second != "" {
		second, w.divided = strings.CutPrefix(second, "/")
		w.fields = append(w.fields, v.FieldByName(second))
	}
	return w
}

func (w *choice) isOn(path string) bool {
	return w.on == "" || slices.Contains(strings.Fields(w.on), path)
}

func (w *choice) text() string {
	if w.fields[0].Kind() == reflect.Bool {
		return w.format
	}
	var numbers []any
	for _, f := range w.fields {
		numbers = append(numbers, int(f.Int()))
	}
	if w.divided {
		numbers[0] = numbers[0].(int) / max(numbers[1].(int), 1)
	}
	return fmt.Sprintf(w.format, numbers...)
}

// read sets the numbers of a word. It reports whether the word is their word.
func (w *choice) read(word string) bool {
	numbers := make([]int, 2)
	if n, err := fmt.Sscanf(word, w.format, &numbers[0], &numbers[1]); n != len(w.fields) || n == 2 && err != nil {
		return false
	}
	if w.divided {
		numbers[0] *= numbers[1]
	}
	for i, f := range w.fields {
		f.SetInt(int64(numbers[i]))
	}
	return w.text() == word
}
