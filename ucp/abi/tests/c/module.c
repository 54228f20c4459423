/* A module that a program loads and closes, as Open MPI does with its components. */
void ucm_set_external_event(int events);

void announce(void)
{
    ucm_set_external_event(1);
}
