package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench/peer"
)

// TestSweepFile says that a file that was cut off anywhere is completed to what
// it would have been.
func TestSweepFile(t *testing.T) {
	r := sweepReport()
	impls := []string{"coopmat", "unfused"}
	path := filepath.Join(t.TempDir(), "x.csv")
	complete := func() {
		s, err := OpenSweep(path, r.Env, subjectsOf(r))
		require.NoError(t, err)
		for i := 0; i < len(r.Results); i += 2 {
			missing, _ := s.Missing(r.Results[i].Subject, impls, nil)
			for _, impl := range missing {
				for _, x := range r.Results[i : i+2] {
					if x.Impl == impl {
						require.NoError(t, s.Append([]Result{x}))
					}
				}
			}
		}
		require.NoError(t, s.Append(nil))
		require.NoError(t, s.Close())
	}
	complete()
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	for n := 0; n <= len(want); n += 37 {
		require.NoError(t, os.WriteFile(path, want[:n], 0o600))
		complete()
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "cut off after %d bytes", n)
	}
}

// TestSweepMissing: what had a result before is not measured again, a peer with any of its own. A file
// of other problems, or of another kind, stays as it is.
func TestSweepMissing(t *testing.T) {
	r := sweepReport()
	r.Results[1].Impl = "torch:flash"
	r.Results[3].Impl = "gone" // a peer without times
	dir := t.TempDir()
	path := filepath.Join(dir, "x.csv")
	open := func(p attention.Problem, env Environment, pass Pass) (*SweepFile, error) {
		op, err := NewAttention(p)
		require.NoError(t, err)
		return OpenSweep(path, env, []*Subject{NewSubject(op, pass)})
	}
	p, env := sweepProblem(512), r.Env
	s, err := open(p, env, Forward)
	require.NoError(t, err)
	require.NoError(t, s.Append(r.Results))
	_, err = open(p, env, Forward)
	require.EqualError(t, err, path+": another process is writing it: name another file, or wait")
	require.NoError(t, s.Close())
	p.HeadDim = 32 // which the file does not have
	s, err = open(p, env, Forward)
	require.NoError(t, err)
	peers := []peer.Peer{{Name: "torch"}, {Name: "gone"}, {Name: "tor"}}
	impls, left := s.Missing(r.Results[0].Subject, []string{"scalar", "coopmat"}, peers)
	_, other := s.Missing(r.Results[2].Subject, nil, peers)
	require.Equal(t, []any{[]string{"scalar"}, peers[1:], []peer.Peer{peers[0], peers[2]}}, []any{impls, left, other})
	require.NoError(t, s.Close())

	for want, change := range map[string]func() Pass{
		`line 2 has driver="TestDriver 1.2", this sweep "TestDriver 2": remove the file or name another`: func() Pass { env.Driver = "TestDriver 2"; return Forward },
		`commit="abc", this sweep "def"`:                     func() Pass { env.Commit = "def"; return Forward },
		`kernel="attention_fwd", this sweep "attention_bwd"`: func() Pass { return Backward },
	} {
		p, env = sweepProblem(512), r.Env
		pass := change()
		_, err := open(p, env, pass)
		require.ErrorContains(t, err, want)
	}
	for precious, want := range map[string]string{
		"gpu,driver,kernel,impl,status,reason,flops,device_ns\n": "its columns differ from the columns of this version",
		"precious\nnotes\nare": "it has no column gpu", "precious": "it is not a CSV file of flashvk",
	} {
		require.NoError(t, os.WriteFile(path, []byte(precious), 0o600))
		_, err := open(sweepProblem(512), env, Forward)
		require.ErrorContains(t, err, path+": "+want)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, precious, string(text), "another file was changed")
	}
	path = filepath.Join(dir, "none", "x.csv")
	_, err = open(p, env, Forward)
	require.EqualError(t, err, path+": no such file or directory")
}
