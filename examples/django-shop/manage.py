"""Django: a model and its message in one `atomic` block, both or neither.

pip install "txcore[django]"
python manage.py demo               # makes the tables, places an order, runs the checker once

python manage.py migrate            # the same by hand
python manage.py order tea
python manage.py txcore_checker     # in a process of its own
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
