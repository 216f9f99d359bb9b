package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// tuningFormat is the version of the file's format.
const tuningFormat = 5

// ErrNewer is kit.ErrNewerTuning.
var ErrNewer = errors.New("a newer version of flashvk wrote it")

// maxTuningBytes bounds what Load reads: thousands of rows.
const maxTuningBytes = 4 << 20

// tuningFile is the JSON of a Tuning.
type tuningFile struct {
	Format int             `json:"format"`
	Device tuningDevice    `json:"device"`
	Rows   []tuningFileRow `json:"rows"`
}

// tuningFileRow is the JSON of a row. Module is a hash of the measured SPIR-V, Made the time of the
// measurement in UTC (RFC 3339), NS the device time of a call.
type tuningFileRow struct {
	Kernel  string          `json:"kernel"`
	Pass    string          `json:"pass"`
	Module  string          `json:"module"`
	Problem json.RawMessage `json:"problem"`
	Config  json.RawMessage `json:"config"`
	NS      float64         `json:"ns"`
	Made    string          `json:"made,omitempty"`
}

// Load is kit.LoadTuning.
func Load(r io.Reader, caps *vk.Caps) (*Tuning, error) {
	t, err := load(r, caps)
	if err != nil {
		return nil, fmt.Errorf("kit: tuning: %w", err)
	}
	return t, nil
}

func load(r io.Reader, caps *vk.Caps) (*Tuning, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxTuningBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxTuningBytes {
		return nil, fmt.Errorf("more than %d bytes", maxTuningBytes)
	}
	var version struct{ Format int }
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, err
	}
	switch {
	case version.Format > tuningFormat:
		return nil, fmt.Errorf("format=%d is above %d, which this version reads: %w", version.Format, tuningFormat, ErrNewer)
	case version.Format < tuningFormat:
		return nil, fmt.Errorf("format=%d is not %d: measure again", version.Format, tuningFormat)
	}
	var file tuningFile
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	if err := in.Decode(&file); err != nil {
		return nil, err
	}
	t := NewTuning(caps)
	if file.Device != t.device {
		return nil, fmt.Errorf("it was measured on %q with driver %d version %#x, not on this device with this driver",
			file.Device.Name, file.Device.DriverID, file.Device.DriverVersion)
	}
	for i, raw := range file.Rows {
		row := tunedRow{tuningFileRow: raw}
		if err := row.read(); err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
		t.rows = append(t.rows, row)
	}
	return t, nil
}

// read checks a row of a file, and finds its table.
func (r *tunedRow) read() error {
	if !(r.NS > 0 && r.NS < math.Inf(1)) {
		return fmt.Errorf("ns=%v is not a time", r.NS)
	}
	if _, err := time.Parse(time.RFC3339, r.Made); r.Made != "" && err != nil {
		return fmt.Errorf("made=%q is not a time", r.Made)
	}
	if r.Kernel == "" || r.Pass == "" {
		return fmt.Errorf("kernel=%q, pass=%q: one is missing", r.Kernel, r.Pass)
	}
	for _, part := range []*json.RawMessage{&r.Problem, &r.Config} {
		var compact bytes.Buffer
		if err := json.Compact(&compact, *part); err != nil {
			return fmt.Errorf("problem and config: %w", err)
		}
		*part = compact.Bytes()
	}
	if t := tables[[2]string{r.Kernel, r.Pass}]; t != nil {
		return t.read(r)
	}
	return nil
}

// read implements tableReader.
func (t *Table[P, C, S]) read(row *tunedRow) error {
	m, err := t.decode(row)
	if err != nil {
		return err
	}
	if err := t.validate(m); err != nil {
		return err
	}
	if row.stale = row.Module != t.Module(&m.problem, &m.config); !row.stale {
		row.measured = m
	}
	return nil
}

// decode reads problem and configuration of a row.
func (t *Table[P, C, S]) decode(row *tunedRow) (*measured[P, C, S], error) {
	m := &measured[P, C, S]{table: t, ns: row.NS}
	if err := readFields(row.Problem, reflect.ValueOf(&m.problem).Elem()); err != nil {
		return nil, fmt.Errorf("problem: %w", err)
	}
	if err := readFields(row.Config, reflect.ValueOf(&m.config).Elem()); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	m.path = t.Path(&m.config)
	return m, nil
}

// fields returns what the JSON of a struct is of: its fields that are not zero by their names in
// snake_case without Num, formats in words.
func fields(v reflect.Value) map[string]any {
	all := map[string]any{}
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			continue
		}
		x := v.Field(i).Interface()
		if t, ok := x.(dtype.DType); ok {
			x = t.String()
		} else if v.Field(i).Kind() == reflect.Struct {
			x = fields(v.Field(i))
		}
		all[text.Snake(strings.TrimPrefix(v.Type().Field(i).Name, "Num"))] = x
	}
	return all
}

// readFields reads what fields returns. Those that are missing are zero.
func readFields(data []byte, v reflect.Value) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	seen := map[string]bool{}
	for key, raw := range all {
		is := strings.ReplaceAll(key, "_", "")
		field, ok := v.Type().FieldByNameFunc(func(name string) bool {
			return strings.EqualFold(name, is) || strings.EqualFold(name, "num"+is)
		})
		switch {
		case !ok:
			return fmt.Errorf("unknown field %q", key)
		case seen[field.Name]:
			return fmt.Errorf("field %q occurs twice", key)
		}
		seen[field.Name] = true
		if err := readField(raw, v.FieldByIndex(field.Index)); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

func readField(raw []byte, v reflect.Value) (err error) {
	if v.Kind() == reflect.Struct {
		return readFields(raw, v)
	}
	to, name := v.Addr().Interface(), ""
	if t, ok := to.(*dtype.DType); ok && json.Unmarshal(raw, &name) == nil {
		*t, err = dtype.Parse(name)
		return err
	}
	return json.Unmarshal(raw, to)
}

// validate returns an error if a row cannot come from a measurement. Sizes are bounded so that
// Feasible computes with them without overflow.
func (t *Table[P, C, S]) validate(m *measured[P, C, S]) error {
	if err := t.Validate(&m.problem); err != nil {
		return err
	}
	if !slices.Contains(t.Paths, m.path) {
		return fmt.Errorf("impl %v is not a path", m.path)
	}
	if !(m.ns > 0 && m.ns < math.Inf(1)) {
		return fmt.Errorf("ns=%v is not a time", m.ns)
	}
	return boundSizes(reflect.ValueOf(m.config), t.Large)
}

// boundSizes returns an error if a number of a configuration is no size.
func boundSizes(v reflect.Value, large []string) error {
	const limit, most = 1 << 16, 1 << 31
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		bound := int64(limit)
		if slices.Contains(large, name) {
			bound = most
		}
		switch f.Kind() {
		case reflect.Struct:
			if err := boundSizes(f, large); err != nil {
				return err
			}
		case reflect.Int:
			if f.Int() < 0 || f.Int() > bound {
				return fmt.Errorf("%s=%d is not between 0 and %d", name, f.Int(), bound)
			}
		}
	}
	return nil
}

// Write writes t as JSON, for kit.LoadTuning.
func (t *Tuning) Write(w io.Writer) error {
	file := tuningFile{tuningFormat, t.device, []tuningFileRow{}}
	for i := range t.rows {
		file.Rows = append(file.Rows, t.rows[i].tuningFileRow)
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "\t")
	return out.Encode(file)
}

// WriteFile writes t to the file at path, and makes its folder. A reader of the file sees the old
// content or the new one, whole.
func (t *Tuning) WriteFile(path string) error {
	var b bytes.Buffer
	err := t.Write(&b)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o777)
	}
	if err == nil {
		err = files.Write(path, b.Bytes())
	}
	if err != nil {
		return fmt.Errorf("kit: tuning: %w", err)
	}
	return nil
}
