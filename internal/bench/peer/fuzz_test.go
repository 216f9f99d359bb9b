package peer

import (
	"testing"

	"github.com/flashvk/flashvk/internal/text"
)

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
		seen := map[string]bool{}
		for _, a := range l.reply.Answers {
			if seen[a.Name] || !nameRule.MatchString(a.Name) {
				t.Errorf("name %q", a.Name)
			}
			seen[a.Name] = true
			for _, s := range []string{a.Note, a.Error, l.reply.About} {
				if text.Short(s, maxText) != s {
					t.Errorf("text %q", s)
				}
			}
			if a.Error != "" {
				continue
			}
			for _, ns := range a.SamplesNS {
				if !(ns >= minNS && ns <= maxNS) {
					t.Errorf("%v ns", ns)
				}
			}
			if a.Iters < 0 || a.Iters > maxCalls || a.Sets < 0 || a.Sets > maxCalls {
				t.Errorf("%+v", a)
			}
		}
	})
}
