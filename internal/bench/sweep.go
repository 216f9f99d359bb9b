package bench

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/internal/files"
)

// A SweepFile is a CSV file of results that differ in some sizes and in the implementation only.
// Results are appended as they come, so that an interrupted sweep can go on.
type SweepFile struct {
	env  Environment
	f    *os.File
	done *Records // what the file held when it was opened
}

// OpenSweep opens or makes the file of a sweep over problems on a device. It cuts off the end of
// an interrupted write. It is an error if the file is of another device, driver, build, kernel or
// pass, if its problems differ from these in a key that is constant in both, or if another
// process has it open.
func OpenSweep(path string, env Environment, problems []*Subject) (_ *SweepFile, err error) {
	s := &SweepFile{env: env}
	if s.f, err = files.OpenLocked(path); err != nil { // two sweeps would not know each other's rows
		return nil, err
	}
	defer func() {
		if err != nil {
			s.f.Close()
			err = bareError(path, err)
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
		return s, errors.Join(s.cut(0), s.write(want[:1]))
	}
	if s.done, err = ReadRecords(bytes.NewReader(whole)); err != nil {
		return nil, err
	}
	if !slices.Equal(s.done.names, want[0]) {
		return nil, errors.New("its columns are not those of this version: name another file")
	}
	this := &Records{names: want[0], rows: want[1:]}
	for _, name := range slices.Concat(buildColumns, deviceColumns, this.keys()) {
		if line, _ := this.different(name, this.Text(0, name)); line > 0 || s.done.Len() == 0 {
			continue // swept
		}
		first := s.done.Text(0, name)
		line, got := s.done.different(name, this.Text(0, name))
		if other, _ := s.done.different(name, first); line > 0 && (other == 0 || !slices.Contains(this.keys(), name)) {
			return nil, fmt.Errorf("line %d has %s=%q, this sweep %q: remove the file or name another", line, name, got, this.Text(0, name))
		}
	}
	return s, s.cut(int64(len(whole)))
}

// cut ends the file after some bytes.
func (s *SweepFile) cut(bytes int64) error {
	if err := s.f.Truncate(bytes); err != nil {
		return err
	}
	_, err := s.f.Seek(bytes, io.SeekStart)
	return err
}

// deviceColumns and buildColumns are constant in a sweep. A chart may have several builds.
var (
	deviceColumns = []string{"gpu", "gpu_type", "driver", "kernel"}
	buildColumns  = []string{"version", "commit"}
)

// bareError returns "path: reason".
func bareError(path string, err error) error {
	return fmt.Errorf("%s: %w", path, files.Bare(err))
}

// lines returns results as lines of the file, the names first.
func (s *SweepFile) lines(results []Result) [][]string {
	return Report{Env: s.env, Results: results}.csvLines()
}

// write appends lines with one call, so that hardly anything can be half written.
func (s *SweepFile) write(lines [][]string) error {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	if err := w.WriteAll(lines); err != nil {
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
		return bareError(s.f.Name(), err)
	}
	return nil
}

// Missing returns the paths and peers that had no result for a problem when the file
// was opened.
func (s *SweepFile) Missing(of *Subject, impls []string, peers []peer.Peer) ([]string, []peer.Peer) {
	line := s.lines([]Result{{Kernel: of.kernel, Subject: of}})
	want := &Records{names: line[0], rows: line[1:]}
	have := func(match func(impl string) bool) bool {
		for i := range s.done.rows {
			same := func(name string) bool { return s.done.Text(i, name) == want.Text(0, name) }
			if match(s.done.Text(i, "impl")) && !slices.ContainsFunc(want.keys(), func(name string) bool { return !same(name) }) {
				return true
			}
		}
		return false
	}
	impls = slices.DeleteFunc(slices.Clone(impls), func(x string) bool {
		return have(func(impl string) bool { return impl == x })
	})
	peers = slices.DeleteFunc(slices.Clone(peers), func(x peer.Peer) bool {
		return have(func(impl string) bool { return impl == x.Name || strings.HasPrefix(impl, x.Name+":") })
	})
	return impls, peers
}

// Close closes the file.
func (s *SweepFile) Close() error { return s.f.Close() }
