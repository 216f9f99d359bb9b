package bench

// A Suite is a list of problems whose results make one table.
type Suite struct {
	Name  string
	About string // what it repeats
	Small bool   // its cases are smaller ones of the same kind, which a CPU device computes in a short time
}

// name returns the name for machines, "" for no suite.
func (s *Suite) name() string {
	switch {
	case s == nil:
		return ""
	case s.Small:
		return s.Name + "-small"
	}
	return s.Name
}
