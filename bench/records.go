package bench

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// Records are the lines of a report in the format CSV, read again.
type Records struct {
	names []string
	rows  [][]string
}

// ReadRecords reads what Report.Write wrote as CSV.
func ReadRecords(r io.Reader) (*Records, error) {
	in := csv.NewReader(r)
	lines, err := in.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, errors.New("it is empty")
	}
	x := &Records{lines[0], lines[1:]}
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
		return 0, fmt.Errorf("line %d: %s=%q is not a number", i+2, name, text)
	}
	return n, nil
}

// different returns the first line, counted from 1, in which a column differs from what
// is wanted, 0 if there is none.
func (x *Records) different(name, want string) (line int, got string) {
	for i := range x.rows {
		if got := x.Text(i, name); got != want {
			return i + 2, got
		}
	}
	return 0, ""
}
