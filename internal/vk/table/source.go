package table

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/flashvk/flashvk/vk"
)

// A BuiltIn is the row that a measurement asks of the built-in table.
type BuiltIn struct {
	Words
	Row    string // as it stands in the source of the table
	Before string // the row that decides today, likewise
}

// BuiltIns returns the rows that measurements on a device ask of the built-in tables, for the device's
// family. Err of a measurement says why it asks for none.
func BuiltIns(t *Tuning, caps *vk.Caps) (list []BuiltIn) {
	for i, words := range t.Rows(caps) {
		x := BuiltIn{Words: words}
		if x.Err == nil {
			x.Row, x.Before, x.Err = t.rows[i].measured.builtIn(caps)
		}
		list = append(list, x)
	}
	return list
}

// builtIn implements measurement. The row matches what the row that decides today matches, but for the family.
func (m *measured[P, C, S]) builtIn(caps *vk.Caps) (row, before string, err error) {
	t := m.table
	won := Row[S, C]{Family: t.Family(caps), Config: m.config}
	switch {
	case t.Rule != nil:
		return "", "", fmt.Errorf("%s %v has a rule instead of rows", t.Kernel, t.Pass)
	case won.Family == "":
		return "", "", fmt.Errorf("%q is of no family of GPUs", caps.Name)
	}
	today, err := t.Find(caps, &m.problem, &Query[C]{}, m.path)
	if err != nil {
		return "", "", err
	}
	won.Formats, won.Shape, won.Fill, won.Most = today.Formats, today.Shape, today.Fill, today.Most
	if won.words() == today.words() {
		return "", "", errors.New("the built-in row has it")
	}
	return won.source(), today.source(), nil
}

// splits is a word for a number that follows from the sizes of a problem, which rows leave to Table.Fit.
var splits = regexp.MustCompile(` splits\d+`)

func (r *Row[S, C]) words() string { return splits.ReplaceAllString(Text(r.Config), "") }

// source returns a row as it stands in the source of its table.
func (r *Row[S, C]) source() string {
	var row, shape []string
	if r.Family != "" {
		row = append(row, fmt.Sprintf("Family: %q", r.Family))
	}
	if r.Formats != 0 {
		row = append(row, "Formats: table."+formatNames[r.Formats])
	}
	for i, v := 0, reflect.ValueOf(r.Shape); i < v.NumField(); i++ {
		if f := v.Field(i); !f.IsZero() {
			shape = append(shape, fmt.Sprintf("%s: %#v", v.Type().Field(i).Name, f))
		}
	}
	if shape != nil {
		row = append(row, "Shape: shape{"+strings.Join(shape, ", ")+"}")
	}
	if r.Fill != 0 {
		row = append(row, fmt.Sprintf("Fill: %v", r.Fill))
	}
	if r.Most != 0 {
		row = append(row, fmt.Sprintf("Most: %v", r.Most))
	}
	return "{" + strings.Join(append(row, fmt.Sprintf("Config: words(%q)", r.words())), ", ") + "}"
}
