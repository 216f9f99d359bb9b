package dtype

import (
	"encoding/json"
	"fmt"
)

// An Option is a DType or none. It is the format of an output that has the format of an input
// unless a caller says otherwise. The zero value is none.
type Option uint8

// Some returns t as an Option.
func Some(t DType) Option { return Option(t) + 1 }

// Or returns the format of o, and t where o is none.
func (o Option) Or(t DType) DType {
	if o == 0 {
		return t
	}
	return DType(o - 1)
}

// String returns the name of the format, or none.
func (o Option) String() string {
	if o == 0 {
		return "none"
	}
	return DType(o - 1).String()
}

// MarshalJSON writes a format as DType does, none as null.
func (o Option) MarshalJSON() ([]byte, error) {
	if o == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(DType(o - 1))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (o *Option) UnmarshalJSON(text []byte) error {
	var t *DType
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("dtype: %w", err)
	}
	switch {
	case t == nil:
		*o = 0
	case !t.Valid():
		return fmt.Errorf("dtype: %d is not a format", *t)
	default:
		*o = Some(*t)
	}
	return nil
}
