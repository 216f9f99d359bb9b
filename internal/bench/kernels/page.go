package kernels

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
)

// A page is a section of commands.txt: what the commands of a kernel say.
type page struct {
	name, title string
	parts       map[string]string
	flags       []flag
	suites      []suite
}

// A flag is a flag of the field of a call with its name.
type flag struct {
	name, usage string
	size        bool   // command run has it from the file
	file        bool   // only command run has it
	field       string // of another name; A.B is in another struct
	unsaid      string // the value without one
}

// A suite has the flags of its cases.
type suite struct {
	bench.Suite
	cases    []string
	by       [3]int // what batch, heads and lengths are divided by in the small form
	anyDType bool   // the format of the cases is not part of the suite
}

//go:embed commands.txt
var commands string

// pages are the sections of commands.txt.
var pages = sync.OnceValue(func() (list []*page) {
	for _, s := range Sections(commands) {
		p := &page{name: s.Name, title: s.Title, parts: map[string]string{}}
		for _, x := range s.Parts {
			p.add(x[0], x[1])
		}
		list = append(list, p)
	}
	return list
})

// A Section is a section of a text about commands. Parts have a head and a text.
type Section struct {
	Name, Title string
	Parts       [][2]string
}

// Sections reads a text. A section begins with a line == NAME: TITLE, a part of it with a line -- HEAD. The
// parts of the first section stand in the others where a $ and their heads do.
func Sections(text string) (list []Section) {
	texts := strings.NewReplacer()
	for i, section := range strings.Split(text, "\n== ")[1:] {
		var s Section
		split := strings.Split(texts.Replace(section), "\n-- ")
		s.Name, s.Title, _ = strings.Cut(strings.TrimSpace(split[0]), ": ")
		for _, part := range split[1:] {
			head, text, _ := strings.Cut(part, "\n")
			s.Parts = append(s.Parts, [2]string{head, strings.TrimRight(text, "\n")})
		}
		if i > 0 {
			list = append(list, s)
			continue
		}
		var words []string
		for _, x := range s.Parts {
			words = append(words, "$"+x[0], x[1])
		}
		texts = strings.NewReplacer(words...)
	}
	return list
}

// add adds a part.
func (p *page) add(head, text string) {
	lines := strings.Split(text, "\n")
	switch words, about, _ := strings.Cut(head, ": "); {
	case head == "flags":
		for _, line := range lines {
			words := strings.Fields(line)
			x := flag{usage: strings.Join(words[2:], " ")}
			x.name, x.field, _ = strings.Cut(words[0], "=")
			kind, unsaid, _ := strings.Cut(words[1], "=")
			x.size, x.file, x.unsaid = kind == "size", kind == "file", unsaid
			p.flags = append(p.flags, x)
		}
	case strings.HasPrefix(head, "suite "):
		s := suite{cases: lines, anyDType: strings.Contains(words, " any-dtype")}
		s.Name, s.About = strings.Fields(words)[1], about
		if _, by, ok := strings.Cut(words, "/"); ok {
			fmt.Sscanf(by, "%d/%d/%d", &s.by[0], &s.by[1], &s.by[2])
		}
		p.suites = append(p.suites, s)
	default:
		p.parts[head] = text
	}
}

// rows are the rows of All, by the names of kernels.
var rows = map[string]Kernel{}

// row adds the row of a kernel, without what its page says. A kernel that names no paths has the
// path auto alone, and all but auto are tuned unless it says which.
func row[C call.Call](k Kernel, of *calls[C]) bool {
	if k.New = of.New; k.Impls == nil {
		k.Impls = []string{"auto"}
	}
	if k.Tune != nil && k.Tune.Impls == nil {
		k.Tune.Impls = k.Impls[min(1, len(k.Impls)-1):]
	}
	rows[of.name] = k
	return true
}

// pageOf returns the page of a kernel.
func pageOf(name string) *page {
	return pages()[slices.IndexFunc(pages(), func(p *page) bool { return p.name == name })]
}

// All lists the kernels.
func All() (list []Kernel) {
	for _, p := range pages() {
		k := rows[p.name]
		k.Name, k.Title, k.Parts = p.name, p.title, p.parts
		list = append(list, k)
	}
	if len(list) != len(rows) {
		panic("kernels: a row has no section in commands.txt")
	}
	return list
}
