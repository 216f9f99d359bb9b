package peer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/text"
)

const good = `{"name": "a", "samples_ns": [1, 2], "iters": 3, "sets": 2, "output": "o", "note": "n"}`

// TestRunRequest says that the request is one line of JSON, and that text of a peer is one line that
// prints, and not long.
func TestRunRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "request")
	command := "cat > " + path + `; printf '{"about": "me\\n\\u001b[2J%0400d"}\n{"name": "a", "samples_ns": [1], "note": "x\\ny\\u202ez"}' 0`
	reply, err := Peer{"p", command}.Run(context.Background(), Request{Op: "attention", Params: map[string]any{"seq_q": 5}}, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 300, utf8.RuneCountInString(reply.About))
	require.Regexp(t, `^me \[2J0+…$`, reply.About)
	require.Equal(t, "x y z", reply.Answers[0].Note)
	request, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(request), "\n"))
	for _, want := range []string{`"version":2,`, `"op":"attention"`, `"params":{"seq_q":5},`} {
		require.Contains(t, string(request), want)
	}
}

// TestRunHang says that a peer that hangs is killed, and what it started, too.
func TestRunHang(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	hang := Peer{"p", "sleep 1000000 & echo $! > " + pid + "; echo '" + good + "'; echo waiting >&2; wait"}
	for limit := 300 * time.Millisecond; ; limit *= 2 { // a busy machine needs longer to begin
		reply, err := hang.Run(context.Background(), Request{}, limit)
		require.ErrorContains(t, err, fmt.Sprintf("it did not finish within %v", limit))
		if strings.HasSuffix(err.Error(), ": waiting") {
			require.Len(t, reply.Answers, 1)
			break
		}
	}
	child, err := os.ReadFile(pid)
	require.NoError(t, err)
	alive := func() bool { // a zombie is not
		state, err := exec.Command("ps", "-o", "stat=", "-p", strings.TrimSpace(string(child))).Output()
		return err == nil && !strings.HasPrefix(string(state), "Z")
	}
	for alive() {
		time.Sleep(10 * time.Millisecond)
	}

	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err = hang.Run(ctx, Request{}, time.Minute)
	require.ErrorIs(t, err, context.Canceled)
}

// FuzzLines says that nothing that a peer writes makes us panic, and that answers which are
// accepted are within their bounds and print.
func FuzzLines(f *testing.F) {
	f.Add([]byte(good+"\n"+`{"about": "me"}`), uint8(7))
	f.Add([]byte(`{"name": "a", "samples_ns": [5e-324, -1, 1e400], "iters": -5, "note": "x\ny"}`), uint8(0))
	f.Add([]byte("{\"error\": \"\x1b[2J\"}\n[1]\nnull\n"), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, cut uint8) {
		stopped := 0
		l := lines{stop: func() { stopped++ }}
		at := min(int(cut), len(data))
		for _, part := range [][]byte{data[:at], data[at:]} {
			if _, err := l.Write(part); err != nil {
				break
			}
		}
		if err := l.close(); err == nil && len(l.reply.Answers) == 0 {
			t.Error("no answer and no error")
		}
		if len(l.reply.Answers) > maxAnswers {
			t.Errorf("%d answers", len(l.reply.Answers))
		}
		for i, a := range l.reply.Answers {
			again := slices.ContainsFunc(l.reply.Answers[:i], func(b Answer) bool { return a.Name == b.Name })
			if err := a.check(); err != nil || again {
				t.Errorf("%+v: %v", a, err)
			}
			for _, s := range []string{a.Note, a.Error, l.reply.About} {
				if text.Short(s, maxText) != s {
					t.Errorf("text %q", s)
				}
			}
		}
	})
}
