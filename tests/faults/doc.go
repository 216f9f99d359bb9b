// Package faults tests failures. Each call of the driver that can fail on a full or a lost device
// fails in turn. Other tests open and close devices and recordings hundreds of times, with
// FLASHVK_LONG=1 hundreds of thousands of times, and with FLASHVK_LONG=N N times a round.
package faults
