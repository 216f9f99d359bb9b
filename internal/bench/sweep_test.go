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

// TestSweepMissing: what had a result before is not measured again, a peer with any of its own.
func TestSweepMissing(t *testing.T) {
	r := sweepReport()
	r.Results[1].Impl = "torch:flash"
	r.Results[3].Impl = "gone" // a peer without times
	path := filepath.Join(t.TempDir(), "x.csv")
	for i := range 2 {
		s, err := OpenSweep(path, r.Env, subjectsOf(r))
		require.NoError(t, err)
		if i == 0 {
			require.NoError(t, s.Append(r.Results))
		}
		peers := []peer.Peer{{Name: "torch"}, {Name: "gone"}, {Name: "tor"}}
		impls, left := s.Missing(r.Results[0].Subject, []string{"scalar", "coopmat"}, peers)
		_, other := s.Missing(r.Results[2].Subject, nil, peers)
		if i == 1 {
			require.Equal(t, []string{"scalar"}, impls)
			require.Equal(t, peers[1:], left)
			require.Equal(t, []peer.Peer{peers[0], peers[2]}, other)
		}
		require.NoError(t, s.Close())
	}
}

func TestSweepErrors(t *testing.T) {
	r := sweepReport()
	dir := t.TempDir()
	path := filepath.Join(dir, "x.csv")
	s, err := OpenSweep(path, r.Env, subjectsOf(r))
	require.NoError(t, err)
	require.NoError(t, s.Append(r.Results))
	require.NoError(t, s.Close())

	p, env := sweepProblem(512), r.Env
	other := func(change func()) error {
		p, env = sweepProblem(512), r.Env
		change()
		s, err := OpenSweep(path, env, []*Subject{subjectOf(p)})
		if err != nil {
			return err
		}
		_, twice := OpenSweep(path, env, []*Subject{subjectOf(p)})
		require.EqualError(t, twice, path+": another process is writing it: name another file, or wait")
		return s.Close()
	}
	require.NoError(t, other(func() { p.SeqQ, p.SeqKV = 4096, 4096 }), "a length that the file does not have")
	require.ErrorContains(t, other(func() { p.HeadDim = 32 }), path+`: line 2 has head_dim="64", this sweep "32": remove the file or name another`)
	require.ErrorContains(t, other(func() { p.Window = attention.Window{On: true, Left: 3} }), `window="off", this sweep "3,0"`)
	require.ErrorContains(t, other(func() { env.Driver = "TestDriver 2" }), `driver="TestDriver 1.2", this sweep "TestDriver 2"`)
	require.ErrorContains(t, other(func() { env.Commit = "def" }), `commit="abc", this sweep "def"`)

	backward, err := NewAttention(p)
	require.NoError(t, err)
	_, err = OpenSweep(path, r.Env, []*Subject{NewSubject(backward, Backward)})
	require.ErrorContains(t, err, `kernel="attention_fwd", this sweep "attention_bwd"`)

	require.NoError(t, os.WriteFile(path, []byte("gpu,driver,kernel,impl,status,reason,flops,device_ns\n"), 0o600))
	require.ErrorContains(t, other(func() {}), "its columns are not those of this version")
	for precious, want := range map[string]string{"precious\nnotes\nare": "it has no column gpu", "precious": "it is not a CSV file of flashvk"} {
		require.NoError(t, os.WriteFile(path, []byte(precious), 0o600))
		require.ErrorContains(t, other(func() {}), path+": "+want)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, precious, string(text), "another file was changed")
	}
	_, err = OpenSweep(filepath.Join(dir, "none", "x.csv"), env, subjectsOf(r))
	require.EqualError(t, err, filepath.Join(dir, "none", "x.csv")+": no such file or directory")
	_, err = OpenSweep(dir, env, subjectsOf(r))
	require.ErrorContains(t, err, dir+": is a directory")
}
