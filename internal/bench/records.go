package bench

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/flashvk/flashvk/internal/files"
)

// Records are the lines of a report in the format CSV, read again.
type Records struct {
	names []string
	rows  [][]string
	lines []int // of the file; nil: the second and those that follow
}

// ReadRecords reads what Report.Write wrote as CSV.
func ReadRecords(r io.Reader) (*Records, error) {
	in := csv.NewReader(files.Results(r))
	lines, err := in.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, errors.New("it is empty")
	}
	x := &Records{names: lines[0], rows: lines[1:]}
	for _, name := range []string{"gpu", "driver", "kernel", "impl", "status", keysAfter, keysBefore, "device_ns"} {
		if !slices.Contains(x.names, name) {
			return nil, fmt.Errorf("it has no column %s, which a CSV file of flashvk has", name)
		}
	}
	return x, nil
}

// keysAfter and keysBefore are the columns around those of the problem.
const keysAfter, keysBefore = "reason", "flops"

// keys returns the columns of the problem.
func (x *Records) keys() []string {
	return x.names[slices.Index(x.names, keysAfter)+1 : slices.Index(x.names, keysBefore)]
}

// Len returns the number of results.
func (x *Records) Len() int { return len(x.rows) }

// Text returns a column of result i, "" if there is no such column.
func (x *Records) Text(i int, name string) string {
	if at := slices.Index(x.names, name); at >= 0 {
		return x.rows[i][at]
	}
	return ""
}

// Number returns a column of result i. An empty one is 0.
func (x *Records) Number(i int, name string) (float64, error) {
	text := x.Text(i, name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("line %d: %s=%q is not a number", x.line(i), name, text)
	}
	return n, nil
}

// line returns the line of result i in its file, counted from 1.
func (x *Records) line(i int) int {
	if x.lines != nil {
		return x.lines[i]
	}
	return i + 2
}

// oneOf returns an error that ends in why unless columns have one value.
func (x *Records) oneOf(columns []string, why string) error {
	for _, name := range columns {
		if line, got := x.different(name, x.Text(0, name)); line > 0 {
			return fmt.Errorf("%s is %q in line %d and %q in line %d: %s", name, x.Text(0, name), x.line(0), got, line, why)
		}
	}
	return nil
}

// different returns the first line, counted from 1, in which a column differs from want, or 0.
func (x *Records) different(name, want string) (line int, got string) {
	for i := range x.rows {
		if got := x.Text(i, name); got != want {
			return x.line(i), got
		}
	}
	return 0, ""
}
