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
	Format int               `json:"format"`
	Device tuningDevice      `json:"device"`
	Rows   []json.RawMessage `json:"rows"`
}

// tuningFileRow is the JSON of a row. Module is a hash of the SPIR-V that was measured, Made the
// time of that in UTC (RFC 3339).
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
	var version struct {
		Format int `json:"format"`
	}
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
	if err := strictly(data, &file); err != nil {
		return nil, err
	}
	t := NewTuning(caps)
	if file.Device != t.device {
		return nil, fmt.Errorf("it was measured on %q with driver %d version %#x, not on this device with this driver",
			file.Device.Name, file.Device.DriverID, file.Device.DriverVersion)
	}
	for i, raw := range file.Rows {
		row, err := readRow(raw)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
		t.rows = append(t.rows, row)
	}
	return t, nil
}

// strictly reads JSON all of whose fields must be known.
func strictly(data []byte, to any) error {
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	return in.Decode(to)
}

// readRow reads a row.
func readRow(raw []byte) (tunedRow, error) {
	var row tuningFileRow
	err := strictly(raw, &row)
	x := tunedRow{kernel: row.Kernel, pass: row.Pass, module: row.Module, problem: row.Problem, config: row.Config, ns: row.NS, made: row.Made}
	if err != nil {
		return x, err
	}
	if !(x.ns > 0 && x.ns < math.Inf(1)) {
		return x, fmt.Errorf("ns=%v is not a time", x.ns)
	}
	if _, err := time.Parse(time.RFC3339, x.made); x.made != "" && err != nil {
		return x, fmt.Errorf("made=%q is not a time", x.made)
	}
	if x.kernel == "" || x.pass == "" {
		return x, fmt.Errorf("kernel=%q, pass=%q: one is missing", x.kernel, x.pass)
	}
	for _, part := range []*json.RawMessage{&x.problem, &x.config} {
		var compact bytes.Buffer
		if err := json.Compact(&compact, *part); err != nil {
			return x, fmt.Errorf("problem and config: %w", err)
		}
		if *part, err = renamed(compact.Bytes(), text.Snake); err != nil {
			return x, fmt.Errorf("problem and config: %w", err)
		}
	}
	if x.table = tables[[2]string{x.kernel, x.pass}]; x.table == nil {
		return x, nil
	}
	return x, x.table.read(&x)
}

// read implements tableReader.
func (t *Table[P, C, S]) read(row *tunedRow) error {
	p, c, err := t.decode(row)
	if err != nil {
		return err
	}
	m := &measured[P, C]{p, c, t.Path(&c), row.ns}
	if err := t.validate(m); err != nil {
		return err
	}
	if row.module != t.Module(&p, &c) {
		row.stale = true
		return nil
	}
	row.measured = m
	return nil
}

// decode reads problem and configuration of a row.
func (t *Table[P, C, S]) decode(row *tunedRow) (p P, c C, err error) {
	if t.Decode != nil {
		p, err = t.Decode(row.problem)
	} else {
		err = readFields(row.problem, reflect.ValueOf(&p).Elem())
	}
	if err != nil {
		return p, c, fmt.Errorf("problem: %w", err)
	}
	config, err := renamed(row.config, joined)
	if err == nil {
		err = strictly(config, &c) // which takes names of fields in any case
	}
	if err != nil {
		return p, c, fmt.Errorf("config: %w", err)
	}
	return p, c, nil
}

// joined returns a name in snake_case as encoding/json takes it for a field of Go's.
func joined(key string) string { return strings.ReplaceAll(key, "_", "") }

// renamed returns JSON whose objects have other keys.
func renamed(data []byte, name func(string) string) (json.RawMessage, error) {
	var list []json.RawMessage
	if json.Unmarshal(data, &list) == nil {
		for i := range list {
			var err error
			if list[i], err = renamed(list[i], name); err != nil {
				return nil, err
			}
		}
		return json.Marshal(list)
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil || all == nil {
		return data, nil
	}
	out := make(map[string]json.RawMessage, len(all))
	for key, value := range all {
		to := name(key)
		if _, ok := out[to]; ok {
			return nil, fmt.Errorf("field %q occurs twice", key)
		}
		var err error
		if out[to], err = renamed(value, name); err != nil {
			return nil, err
		}
	}
	return json.Marshal(out)
}

// encode returns what the JSON of a problem is of.
func (t *Table[P, C, S]) encode(p *P) any {
	if t.Encode != nil {
		return t.Encode(p)
	}
	return fields(reflect.ValueOf(p).Elem())
}

// fields returns what the JSON of a problem is of: its fields by their names in snake_case,
// formats in words.
func fields(p reflect.Value) map[string]any {
	all := map[string]any{}
	for i := range p.NumField() {
		x := p.Field(i).Interface()
		if t, ok := x.(dtype.DType); ok {
			x = t.String()
		}
		all[text.Snake(p.Type().Field(i).Name)] = x
	}
	return all
}

// readFields reads what fields returns. Those that are missing are zero.
func readFields(data []byte, p reflect.Value) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	for i := range p.NumField() {
		name := text.Snake(p.Type().Field(i).Name)
		raw, ok := all[name]
		if delete(all, name); !ok {
			continue
		}
		to, format := p.Field(i).Addr().Interface(), ""
		t, ok := to.(*dtype.DType)
		if ok {
			to = &format
		}
		raw, err := renamed(raw, joined) // of a struct among them
		if err == nil {
			err = json.Unmarshal(raw, to)
		}
		if ok && err == nil {
			*t, err = dtype.Parse(format)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for name := range all {
		return fmt.Errorf("unknown field %q", name)
	}
	return nil
}

// validate returns an error if a row cannot come from a measurement. Sizes are bounded so that
// Feasible computes with them without overflow.
func (t *Table[P, C, S]) validate(m *measured[P, C]) error {
	if err := t.Validate(&m.problem); err != nil {
		return err
	}
	if !t.has(m.path) {
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

// Write is that of kit.Tuning.
func (t *Tuning) Write(w io.Writer) error {
	file := struct {
		Format int             `json:"format"`
		Device tuningDevice    `json:"device"`
		Rows   []tuningFileRow `json:"rows"`
	}{tuningFormat, t.device, []tuningFileRow{}}
	for i := range t.rows {
		r := &t.rows[i]
		file.Rows = append(file.Rows, tuningFileRow{r.kernel, r.pass, r.module, r.problem, r.config, r.ns, r.made})
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "\t")
	return out.Encode(file)
}

// WriteFile is that of kit.Tuning.
func (t *Tuning) WriteFile(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("kit: tuning: %w", err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Write(&b); err != nil {
		return err
	}
	return files.Write(path, b.Bytes())
}
