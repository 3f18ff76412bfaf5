package peer

import (
	"errors"
	"io"
	"net"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// ErrFull is a limit on connections, nodes or records that is reached.
var ErrFull = errors.New("too many")

// ReasonOtherNode is the label of a report about a pod that is not on the node
// of whoever sent it.
const ReasonOtherNode = "other_node"

// MalformedError is a message that its sender should never have built.
type MalformedError struct{ Cause error }

func (e *MalformedError) Error() string { return "malformed message: " + e.Cause.Error() }
func (e *MalformedError) Unwrap() error { return e.Cause }

// IdentityError is a peer that is not who it should be.
type IdentityError struct{ Cause error }

func (e *IdentityError) Error() string { return "identity refused: " + e.Cause.Error() }
func (e *IdentityError) Unwrap() error { return e.Cause }

// Reason is the label of an error that is somebody's fault, or "" for the
// ordinary ends of a connection.
func Reason(err error) string {
	var (
		malformed *MalformedError
		foreign   *federation.ForeignError
		wrong     *IdentityError
	)
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return ""
	case errors.Is(err, link.ErrOversized):
		return "oversized"
	case errors.Is(err, ErrFull):
		return "full"
	case errors.As(err, &foreign):
		return "foreign"
	case errors.As(err, &wrong):
		return "identity"
	case errors.As(err, &malformed):
		return "malformed"
	}
	return ""
}
