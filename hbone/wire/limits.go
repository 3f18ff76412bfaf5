package wire

// Limits and initial values of RFC 9113 §6.5.2 and §6.9.
const (
	MaxWindow     = 1<<31 - 1 // bytes
	DefaultWindow = 65535     // bytes
	MinMaxFrame   = 16384     // bytes
	MaxMaxFrame   = 1<<24 - 1 // bytes
	MaxStreamID   = 1<<31 - 1
	HeaderTable   = 4096 // bytes
)

// HeaderLen is the length of a frame header.
const HeaderLen = 9
