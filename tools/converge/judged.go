package main

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
)

//go:embed judged.txt
var judgedText string

// judged is what people have decided about findings.
type judged struct {
	file      string
	places    []*excuse
	constants []*constant
}

// An excuse is a place whose findings are safe: those because of one branch, or all.
type excuse struct {
	line  int
	class class
	place place
	cause *place
	used  bool
}

// A constant is a boolean specialization constant. Modules are analysed with one of its values,
// or with both.
type constant struct {
	line   int
	name   string
	values []bool
	used   bool
}

var (
	excusePattern   = regexp.MustCompile(`^(inside|after|operand) (\S+) (\S+)#(\d+)(?: since (\S+) (\S+)#(\d+))?$`)
	constantPattern = regexp.MustCompile(`^constant (\w+) (true|false|either)$`)
)

// parseJudged reads lines
//
//	CLASS FUNCTION KIND#NUMBER [since FUNCTION KIND#NUMBER]: REASON
//	constant NAME true|false|either: REASON
//
// Lines that are empty or begin with # are comments, and those that begin with a space go on
// with a reason.
func parseJudged(file, text string) (*judged, error) {
	j := &judged{file: file}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, " \n")
		if line == "" || line[0] == '#' || line[0] == ' ' {
			continue
		}
		what, reason, _ := strings.Cut(line, ": ")
		if strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: no reason", file, n)
		}
		if m := constantPattern.FindStringSubmatch(what); m != nil {
			c := &constant{line: n, name: m[1]}
			for _, v := range []bool{false, true} {
				if m[2] == "either" || m[2] == strconv.FormatBool(v) {
					c.values = append(c.values, v)
				}
			}
			j.constants = append(j.constants, c)
			continue
		}
		m := excusePattern.FindStringSubmatch(what)
		if m == nil {
			return nil, fmt.Errorf("%s:%d: %q is neither a place nor a constant", file, n, what)
		}
		e := &excuse{line: n, class: class(m[1]), place: named(m[2:5])}
		if m[5] != "" {
			cause := named(m[5:8])
			e.cause = &cause
		}
		j.places = append(j.places, e)
	}
	return j, nil
}

// named is the place of three words.
func named(words []string) place {
	n, _ := strconv.Atoi(words[2]) // digits, by the pattern
	return place{function: words[0], kind: words[1], number: n}
}

// excuses reports whether a finding is judged safe.
func (j *judged) excuses(f finding) bool {
	f.place.line, f.cause.line = "", ""
	yes := false
	for _, e := range j.places {
		if e.class == f.class && e.place == f.place && (e.cause == nil || *e.cause == f.cause) {
			e.used, yes = true, true
		}
	}
	return yes
}

// cases returns the values of constants that a module is analysed with, one set after
// the other.
func (j *judged) cases(m *module) []map[string]bool {
	sets := []map[string]bool{{}}
	for _, c := range j.constants {
		if !m.chooses(c.name) {
			continue
		}
		c.used = true
		var next []map[string]bool
		for _, set := range sets {
			for _, v := range c.values {
				with := maps.Clone(set)
				with[c.name] = v
				next = append(next, with)
			}
		}
		sets = next
	}
	return sets
}

// unused returns the lines that match nothing.
func (j *judged) unused() []string {
	var problems []string
	for _, c := range j.constants {
		if !c.used {
			problems = append(problems, fmt.Sprintf("%s:%d: no module has a constant %s", j.file, c.line, c.name))
		}
	}
	for _, e := range j.places {
		if !e.used {
			problems = append(problems, fmt.Sprintf("%s:%d: excuses nothing: no module has this finding", j.file, e.line))
		}
	}
	return problems
}
