package file

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// confirmTimeout bounds how long an operator waits for Run, which is busy only
// while it reads the file.
const confirmTimeout = 10 * time.Second

// Endpoints is what w answers on the admin port.
func (w *Watcher) Endpoints() []admin.Endpoint {
	return []admin.Endpoint{
		{Pattern: "GET /discovery", Doc: "the discovery file: revision in force, last success, last error, what is held",
			Handler: admin.Only(func(rw http.ResponseWriter, _ *http.Request) { admin.Answer(rw, http.StatusOK, w.Status()) })},
		{Pattern: "POST /discovery/confirm", Doc: "take the held content ?id= of the discovery file into force", Handler: admin.Only(w.serveConfirm, "id")},
	}
}

func (w *Watcher) serveConfirm(rw http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		admin.Fail(rw, http.StatusBadRequest, errors.New("id: must be set: give ?id= with the name of the content that is held, which `GET /discovery` has as held and the log as confirm"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), confirmTimeout)
	defer cancel()
	switch err := w.Confirm(ctx, id); {
	case errors.Is(err, ErrNotHeld):
		admin.Fail(rw, http.StatusConflict, err)
	case err != nil:
		admin.Fail(rw, http.StatusServiceUnavailable, err)
	default:
		admin.Answer(rw, http.StatusOK, w.Status())
	}
}
