package bench

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench/peer"
)

// A SweepFile is a CSV file of results that differ in the sequence length and
// the implementation only. Results are appended as they come, so that a sweep
// that was interrupted goes on where it stopped.
type SweepFile struct {
	env  Environment
	f    *os.File
	done *Records // what the file held when it was opened
}

// OpenSweep opens or makes the file of a sweep over lengths of p on a device.
// What an interrupted write left at its end is cut off. It is an error if the
// file holds something else: another device, driver, build, problem or pass.
func OpenSweep(path string, env Environment, p attention.Problem, pass Pass) (_ *SweepFile, err error) {
	s := &SweepFile{env: env}
	if s.f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, bareError(path, err)
	}
	defer func() {
		if err != nil {
			s.f.Close()
			err = bareError(path, err)
		}
	}()
	info, err := s.f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // which may never end
		return nil, errors.New("it is not a regular file")
	}
	text, err := io.ReadAll(s.f)
	if err != nil {
		return nil, err
	}
	want := s.lines([]Result{{Kernel: pass.kernel(), Problem: p}})
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
	for at, name := range want[0] {
		if !slices.Contains(sweepColumns, name) {
			continue
		}
		if line, got := s.done.different(name, want[1][at]); line > 0 {
			return nil, fmt.Errorf("line %d has %s=%q, this sweep %q: remove the file or name another", line, name, got, want[1][at])
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

// sweepColumns are those that are the same in all of a sweep.
var sweepColumns = []string{
	"gpu", "gpu_type", "driver", "version", "commit", "kernel", "dtype", "batch", "heads", "kv_heads", "head_dim", "causal", "causal_align", "scale",
	"value_dim", "window", "softcap", "alibi", "bias", "key_mask", "sinks", "dropout",
}

// bareError returns "path: reason".
func bareError(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// lines returns results as lines of the file, the names first.
func (s *SweepFile) lines(results []Result) [][]string {
	return Report{Env: s.env, Results: results}.csvLines()
}

// write appends lines with one call, so that little can be half written.
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

// Missing returns the paths and peers that had no result for p when the file
// was opened.
func (s *SweepFile) Missing(p attention.Problem, impls []attention.Impl, peers []peer.Peer) ([]attention.Impl, []peer.Peer) {
	have := func(match func(impl string) bool) bool {
		for i := range s.done.rows {
			if s.done.Text(i, "seq_q") == strconv.Itoa(p.SeqQ) && s.done.Text(i, "seq_kv") == strconv.Itoa(p.SeqKV) && match(s.done.Text(i, "impl")) {
				return true
			}
		}
		return false
	}
	impls = slices.DeleteFunc(slices.Clone(impls), func(x attention.Impl) bool {
		return have(func(impl string) bool { return impl == x.String() })
	})
	peers = slices.DeleteFunc(slices.Clone(peers), func(x peer.Peer) bool {
		return have(func(impl string) bool { return impl == x.Name || strings.HasPrefix(impl, x.Name+":") })
	})
	return impls, peers
}

// Close closes the file.
func (s *SweepFile) Close() error { return s.f.Close() }
