package peer

import (
	"slices"
	"testing"

	"github.com/flashvk/flashvk/internal/text"
)

const good = `{"name": "a", "samples_ns": [1, 2], "iters": 3, "sets": 2, "output": "o", "note": "n"}`

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
