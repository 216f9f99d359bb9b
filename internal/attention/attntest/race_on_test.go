//go:build race

package attntest

const raceDetector = true
