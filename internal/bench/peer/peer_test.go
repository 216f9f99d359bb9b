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

// TestRun has what peers do, good and bad.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, command string
		answers       int
		want          string // in the error; "" is none
	}{
		{"a good one", `read request; echo '{"about": "me"}'; echo; echo '` + good + `'`, 1, ""},
		{"no end of line", `printf '%s' '` + good + `'`, 1, ""},
		{"one of several fails", `echo '` + good + `'; echo '{"name": "b", "error": "no kernel"}'`, 2, ""},
		{"something is left behind", `sleep 60 & echo '` + good + `'`, 1, ""},
		{"it fails later", `echo '` + good + `'; exit 1`, 1, "exit status 1"},
		{"it refuses", `echo '{"error": "no CUDA device"}'`, 0, "no CUDA device"},
		{"no such program", `/nowhere/program`, 0, "exit status 127"},
		{"nothing", `true`, 0, "it gave no answer"},
		{"text", `echo '` + good + `'; echo hello; echo '` + good + `'`, 1, `it wrote "hello", which is not a JSON object`},
		{"empty object", `echo '{}'`, 0, "which has neither name nor about"},
		{"no times", `echo '{"name": "a"}'`, 0, "the answer of a has neither samples_ns nor error"},
		{"a huge time", `echo '{"name": "a", "samples_ns": [1e300]}'`, 0, "a took 1e+300 ns, which is not from"},
		{"too many sets", `echo '{"name": "a", "samples_ns": [1], "sets": 1000000000000}'`, 0, "the answer of a has sets=1000000000000, which"},
		{"an escape in a path", `printf '%s' '{"name": "a", "samples_ns": [1], "output": "\u001b[2J"}'`, 0, "the answer of a has an output that is no name of a file"},
		{"two of a name", `echo '` + good + `'; echo '` + good + `'`, 1, "it gave two answers of the name a"},
		{"a long name", `printf '{"name": "%065d", "samples_ns": [1]}' 7`, 0, "of an answer is not made of 1 to 64 letters"},
		{"an error of many lines", `printf '%s' '{"error": "no\n\u001b[31mkernel"}'`, 0, "no [31mkernel"},
		{"escapes on standard error", `printf '\033[31mno\tkernel\033[0m\n' >&2; exit 3`, 0, "exit status 3: [31mno kernel [0m"},
		{"long line", `head -c 3000000 /dev/zero | tr '\0' x; sleep 60`, 0, "it wrote a line of more than"},
		{"many answers", `for i in $(seq 101); do echo '{"name": "a'$i'", "samples_ns": [1]}'; done`, 100, "it gave more than 100 answers"},
	} {
		reply, err := Peer{"p", c.command}.Run(context.Background(), Request{Op: "attention"}, time.Minute)
		require.Len(t, reply.Answers, c.answers, c.name)
		if c.want == "" {
			require.NoError(t, err, c.name)
			require.Equal(t, Answer{Name: "a", SamplesNS: []float64{1, 2}, Iters: 3, Sets: 2, Output: "o", Note: "n"}, reply.Answers[0])
			continue
		}
		require.ErrorContains(t, err, c.want, c.name)
	}
}

// TestRunRequest says that the request is one line of JSON, and that text of a peer is one line that
// prints, and not long.
func TestRunRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "request")
	command := "cat > " + path + `; printf '{"about": "me\\n\\u001b[2J%0400d"}\n{"name": "a", "samples_ns": [1], "note": "x\\ny\\u202ez"}' 0`
	reply, err := Peer{"p", command}.Run(context.Background(), Request{Op: "attention", SeqQ: 5}, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 300, utf8.RuneCountInString(reply.About))
	require.Regexp(t, `^me \[2J0+…$`, reply.About)
	require.Equal(t, "x y z", reply.Answers[0].Note)
	request, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(request), "\n"))
	for _, want := range []string{`"version":1,`, `"op":"attention"`, `"seq_q":5,`, `"features":[]`} {
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
