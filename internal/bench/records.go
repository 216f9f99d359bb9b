package bench

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/internal/bench/peer"
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

// keysAfter and keysBefore are the columns around the columns of the problem.
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

// A SweepFile is a CSV file of results that differ in some sizes and in the implementation only.
// Results are appended as they come, so that an interrupted sweep can go on.
type SweepFile struct {
	env  Environment
	f    *os.File
	done *Records // what the file held when it was opened
}

// OpenSweep opens or makes the file of a sweep over problems on a device. It cuts off the end of
// an interrupted write. It is an error if the file is of another device, driver, build, kernel or
// pass, or if another process has it open.
func OpenSweep(path string, env Environment, problems []*Subject) (_ *SweepFile, err error) {
	s := &SweepFile{env: env}
	if s.f, err = files.OpenLocked(path); err != nil { // two sweeps would not know each other's rows
		return nil, err
	}
	defer func() {
		if err != nil {
			s.f.Close()
			err = fmt.Errorf("%s: %w", path, files.Bare(err))
		}
	}()
	text, err := io.ReadAll(s.f)
	if err != nil {
		return nil, err
	}
	var wanted []Result
	for _, of := range problems {
		wanted = append(wanted, Result{Kernel: of.kernel, Subject: of})
	}
	want := s.lines(wanted)
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // values have no line ends
	if len(whole) == 0 {
		if !strings.HasPrefix(strings.Join(want[0], ","), string(text)) {
			return nil, errors.New("it is not a CSV file of flashvk: name another file")
		}
		s.done = &Records{names: want[0]}
		return s, errors.Join(s.f.Truncate(0), s.write(want[:1]))
	}
	if s.done, err = ReadRecords(bytes.NewReader(whole)); err != nil {
		return nil, err
	}
	if !slices.Equal(s.done.names, want[0]) {
		return nil, errors.New("its columns differ from the columns of this version: name another file")
	}
	for _, name := range slices.Concat(buildColumns, deviceColumns) {
		mine := (&Records{names: want[0], rows: want[1:]}).Text(0, name)
		if line, got := s.done.different(name, mine); line > 0 {
			return nil, fmt.Errorf("line %d has %s=%q, this sweep %q: remove the file or name another", line, name, got, mine)
		}
	}
	return s, s.f.Truncate(int64(len(whole)))
}

// deviceColumns and buildColumns are constant in a sweep. A chart may have several builds.
var (
	deviceColumns = []string{"gpu", "gpu_type", "driver", "kernel"}
	buildColumns  = []string{"version", "commit"}
)

// lines returns results as lines of the file, the names first.
func (s *SweepFile) lines(results []Result) [][]string {
	return Report{Env: s.env, Results: results}.csvLines()
}

// write appends lines with one call, so that hardly anything can be half written.
func (s *SweepFile) write(lines [][]string) error {
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(lines); err != nil {
		return err
	}
	if _, err := s.f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if _, err := s.f.Write(b.Bytes()); err != nil {
		return err
	}
	return s.f.Sync()
}

// Append adds results.
func (s *SweepFile) Append(results []Result) error {
	if len(results) == 0 {
		return nil
	}
	if err := s.write(s.lines(results)[1:]); err != nil {
		return fmt.Errorf("%s: %w", s.f.Name(), files.Bare(err))
	}
	return nil
}

// Missing returns the paths and peers that had no result for a problem when the file
// was opened.
func (s *SweepFile) Missing(of *Subject, impls []string, peers []peer.Peer) ([]string, []peer.Peer) {
	line := s.lines([]Result{{Kernel: of.kernel, Subject: of}})
	want := &Records{names: line[0], rows: line[1:]}
	var done []string // implementations
	for i := range s.done.rows {
		if !slices.ContainsFunc(want.keys(), func(name string) bool { return s.done.Text(i, name) != want.Text(0, name) }) {
			impl := s.done.Text(i, "impl")
			name, _, _ := strings.Cut(impl, ":") // of a peer
			done = append(done, impl, name)
		}
	}
	impls = slices.DeleteFunc(slices.Clone(impls), func(x string) bool { return slices.Contains(done, x) })
	peers = slices.DeleteFunc(slices.Clone(peers), func(x peer.Peer) bool { return slices.Contains(done, x.Name) })
	return impls, peers
}

// Close closes the file.
func (s *SweepFile) Close() error { return s.f.Close() }
