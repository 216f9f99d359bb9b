package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/internal/text"
)

const (
	maxLine    = 1 << 20 // bytes of a line of a peer
	maxAnswers = 100
	tailBytes  = 4 << 10 // of standard error that are kept
	// killWait is how long the pipes of a killed peer are waited for: something
	// that it left behind may hold them.
	killWait = time.Second
)

// Run asks p. The Reply has everything that p said until an error. The error is
// about the peer, unless it wraps the error of ctx. Run kills the peer and the
// processes that the peer started after limit.
func (p Peer) Run(ctx context.Context, r Request, limit time.Duration) (Reply, error) {
	r.Version = Version
	request, err := json.Marshal(r)
	if err != nil {
		return Reply{}, err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out := lines{stop: cancel}
	var errs tail
	cmd := exec.CommandContext(limited, "sh", "-c", p.Command)
	cmd.Stdin = bytes.NewReader(append(request, '\n'))
	cmd.Stdout, cmd.Stderr = &out, &errs
	group(cmd) // so that its children can be killed with it
	cmd.WaitDelay = killWait
	err = cmd.Run()
	if cmd.Process != nil {
		killGroup(cmd.Process) // what it started would disturb the next one
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case out.err != nil:
		err = out.err
	case limited.Err() != nil:
		err = fmt.Errorf("it did not finish within %v%s", limit, errs.said())
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // the latter: a process that it left behind held its output
		err = out.close()
	default:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%v%s", exit, errs.said())
		}
	}
	return out.reply, err
}

// lines reads a peer's standard output.
type lines struct {
	reply   Reply
	partial []byte
	err     error  // the first thing wrong; nothing is read after it
	stop    func() // called with it
}

func (l *lines) Write(data []byte) (int, error) {
	l.partial = append(l.partial, data...)
	for l.err == nil {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			break
		}
		l.err = l.line(line)
		l.partial = rest
	}
	if l.err == nil && len(l.partial) > maxLine {
		l.err = fmt.Errorf("it wrote a line of more than %d bytes", maxLine)
	}
	if l.err != nil {
		l.stop()
	}
	return len(data), l.err
}

// close reads what has no end of line and says if nothing was said at all.
func (l *lines) close() error {
	if l.err == nil {
		l.err = l.line(l.partial)
	}
	if l.err == nil && len(l.reply.Answers) == 0 {
		l.err = errors.New("it gave no answer")
	}
	return l.err
}

// line reads one line. Empty ones do not count.
func (l *lines) line(raw []byte) error {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil
	}
	var x struct {
		About string `json:"about"`
		Answer
	}
	if err := json.Unmarshal(raw, &x); err != nil {
		return fmt.Errorf("it wrote %s, which is not a JSON object of the protocol", quote(raw))
	}
	x.About, x.Note, x.Error = text.Short(x.About, maxText), text.Short(x.Note, maxText), text.Short(x.Error, maxText)
	if x.Name == "" {
		switch {
		case x.Error != "":
			return errors.New(x.Error)
		case x.About == "":
			return fmt.Errorf("it wrote %s, which has neither name nor about", quote(raw))
		}
		l.reply.About = x.About
		return nil
	}
	if err := x.check(); err != nil {
		return err
	}
	if len(l.reply.Answers) == maxAnswers {
		return fmt.Errorf("it gave more than %d answers", maxAnswers)
	}
	if slices.ContainsFunc(l.reply.Answers, func(y Answer) bool { return y.Name == x.Name }) {
		return fmt.Errorf("it gave two answers of the name %s", x.Name)
	}
	l.reply.Answers = append(l.reply.Answers, x.Answer)
	return nil
}

// quote returns the beginning of a line for a message.
func quote(raw []byte) string {
	const most = 60
	if len(raw) > most {
		return fmt.Sprintf("%q…", raw[:most])
	}
	return fmt.Sprintf("%q", raw)
}

// A tail keeps the end of what is written.
type tail struct{ text []byte }

func (t *tail) Write(data []byte) (int, error) {
	t.text = append(t.text, data...)
	if n := len(t.text) - tailBytes; n > 0 {
		t.text = append(t.text[:0], t.text[n:]...)
	}
	return len(data), nil
}

// said returns the last line that is not empty, for the end of a message.
func (t *tail) said() string {
	all := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	last := text.Short(all[len(all)-1], maxText)
	if last == "" {
		return ""
	}
	return ": " + last
}
