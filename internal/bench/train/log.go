package train

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/files"
)

// logHead is the first line of a log.
const logHead = "step,loss,lr,tokens_per_s,seconds\n"

// A log is the CSV file of a training.
type log struct {
	io.WriteCloser
	head string // that is not written yet
}

// openLog begins the file anew, or, for a training that is continued, cuts off its rows behind where that begins, and
// adds the others to the result. No other training writes the file until the log is closed.
func (o *Schedule) openLog(goOn bool, r *Result) (_ *log, err error) {
	if info, err := os.Stat(o.CSV); o.CSV == "" || !goOn && err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(cmp.Or(o.CSV, os.DevNull), os.O_WRONLY, 0)
		return &log{f, logHead}, err
	}
	f, err := files.OpenLocked(o.CSV)
	if err != nil {
		return nil, err
	}
	l, end := &log{f, logHead}, int64(0)
	if goOn {
		r.Rows, err = readLog(o.CSV)
		r.Rows = slices.DeleteFunc(r.Rows, func(row Row) bool { return row.Step > r.First })
	}
	if n := len(r.Rows); n > 0 {
		l.head, end = "", r.Rows[n-1].end
	}
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// readLog reads the rows of a file, none if there is no file. A line that was not finished when
// the program was killed ends it.
func readLog(path string) (rows []Row, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // it may have no end
		return nil, fmt.Errorf("%s: is %s, not a regular file", path, files.Kind(info.Mode()))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := strings.SplitAfter(string(text), "\n")
	if !strings.HasPrefix(logHead, lines[0]) {
		return nil, fmt.Errorf("%s: it is no log of a training", path)
	}
	end := len(lines[0])
	for i, line := range lines[1:max(len(lines)-1, 1)] {
		end += len(line)
		row := Row{end: int64(end)}
		if _, err := fmt.Sscanf(line, "%d,%g,%g,%g,%g\n", &row.Step, &row.Loss, &row.LR, &row.TokensRate, &row.Seconds); err != nil {
			return nil, fmt.Errorf("%s: line %d is no row of a log: %q", path, i+2, line)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// write appends a row, which is in the file when it returns.
func (l *log) write(row Row) error {
	if l == nil {
		return nil
	}
	_, err := fmt.Fprintf(l, "%s%d,%g,%g,%.6g,%.6g\n", l.head, row.Step, row.Loss, row.LR, row.TokensRate, row.Seconds)
	l.head = ""
	return err
}

// means returns the means of the losses over n steps each, with the least and the largest of them.
func means(rows []Row, n int) chart.Series {
	s := chart.Series{Name: "loss"}
	if n > 1 {
		s.Name = fmt.Sprintf("mean of %d, least to most", n)
	}
	for part := range slices.Chunk(rows[:len(rows)/n*n], n) {
		mean, low, high := 0.0, part[0].Loss, part[0].Loss
		for _, row := range part {
			mean += row.Loss / float64(n)
			low, high = min(low, row.Loss), max(high, row.Loss)
		}
		s.X, s.Y = append(s.X, float64(part[n-1].Step)), append(s.Y, mean)
		s.Low, s.High = append(s.Low, low), append(s.High, high)
	}
	return s
}

// drawLosses draws means of the losses, each over a hundredth of the steps, and the means of the
// logs beside.
func (o *Schedule) drawLosses(title, of string, rows []Row) error {
	n := max(len(rows)/100, 1)
	c := chart.Chart{
		Title: title, Subtitle: fmt.Sprintf("%s, lr %g, seed %d", of, o.LR, o.Seed),
		X: "step", Y: "loss", Plain: true, Series: []chart.Series{means(rows, n)},
	}
	for _, b := range o.Beside {
		beside, err := readLog(b.Path)
		if err != nil {
			return err
		}
		other := means(beside, n)
		other.Name, other.Peer, other.Low, other.High = b.Name, true, nil, nil
		c.Series = append(c.Series, other)
	}
	return write(&c, o.Curve)
}

// canDraw returns the error that write would have, before work that would be lost. "" is no
// drawing.
func canDraw(name string) error {
	if name == "" {
		return nil
	}
	probe, err := files.Create(drawingFile(name))
	if err != nil {
		return err
	}
	return probe.Close()
}

// drawingFile returns the file of a drawing, which may be named without its ending; "" of none.
func drawingFile(name string) string {
	if name == "" {
		return ""
	}
	return strings.TrimSuffix(name, ".svg") + ".svg"
}

// write writes a drawing.
func write(c *chart.Chart, name string) error {
	var b bytes.Buffer
	if err := c.SVG(&b); err != nil {
		return err
	}
	return files.Write(drawingFile(name), b.Bytes())
}
